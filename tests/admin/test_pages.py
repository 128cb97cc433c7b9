"""The admin's pages on callers, rules at work, costs, trials, candidates, edits and connections."""

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone, translation

from django_throttle import limiter, rulebook
from django_throttle.connections import overview
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.console.admin.candidates import ThrottleCandidateAdmin, picture
from django_throttle.console.models import ThrottleCandidate
from django_throttle.console.recording import RecordFlusher, own_records, redis_keys
from django_throttle.console.route_costs import CostFlusher, route_costs
from django_throttle.costs.meter import MEASURES
from django_throttle.identity import keys
from django_throttle.identity.call import Call
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.local.open_sockets import open_sockets
from django_throttle.models import ThrottleChange, ThrottleOverride, ThrottleRule, typed_keys
from django_throttle.models.subjects import KEY_HASH_PREFIX as HASHED
from django_throttle.observe.reports import ident_for_logs
from django_throttle.stores import RedisStore
from tests import doors
from tests.admin.conftest import NASTY, errors, form, messages, text, url, user
from tests.connections.evictions import redis_store, sockets
from tests.console.conftest import call
from tests.console.test_route_costs import used
from tests.doors import BOTH, REDIS, Enforce, Store
from tests.servers import RedisServer, free_port

pytestmark = pytest.mark.django_db
PAGE, RESET = url("explain"), url("explain_reset")


def forget() -> None:
    own_records.reset()
    route_costs.take()
    open_sockets.clear()
    overview.clear_overviews()


@pytest.fixture(autouse=True)
def nothing_recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("django_throttle.admin.connections.ANSWER_SECONDS", 0.1)
    forget()
    yield
    forget()


def words(client: Client, **asked: str) -> str:
    answer = client.get(PAGE, asked)
    assert answer.status_code == 200 and "no-store" in answer["Cache-Control"]
    return text(answer)


def refuse(ident: str) -> None:
    while limiter.decide(Call("search", ("request",), KnownCaller(ident), method="POST")).allowed:
        pass


@BOTH
def test_it_says_why_or_that_nobody_can_tell(enforce: Enforce, operator: Client) -> None:
    store = enforce(api={"rate": "2/min", "key": "user"}, sockets={"limit": 5, "algorithm": "concurrency"})
    anna = User.objects.create_user("anna")
    assert "Not refused in the last day. A request by" in words(operator, ident="anna")
    refuse(f"user:{anna.pk}")
    if isinstance(store, RedisStore):
        RecordFlusher(store)()
    for typed in ("anna", f"user:{anna.pk}", ident_for_logs(f"user:{anna.pk}")):
        said = words(operator, ident=typed, scope="search", method="post")
        assert "Refused 1 time in the last hour, last at " in said and ", by rule api. A POST to search by" in said
        assert f"A POST to search by user:{anna.pk} would be refused by rule 'api': 2 of 2 used, free in" in said
        assert "reason=429+on+search%2C+rule+api%2C+ref+" in operator.get(PAGE, {"ident": typed}).content.decode()
        assert "it counts open WebSockets sockets" in said
    enforce(login={"rate": "2/min", "key": "django_throttle.contrib.logins.login_name"})
    said = words(operator, ident="anna", scope="search")
    assert f"A request to search by user:{anna.pk}: nobody can tell, because of rule 'login': it counts each" in said
    assert "look up django_throttle.contrib.logins.login_name:anna" in said
    assert "There is no method 'PSOT'; did you mean 'POST'?" in words(operator, ident="anna", method="psot")
    assert "Nothing has the scope 'lgin'; did you mean 'login'?" in words(operator, ident="anna", scope="lgin")


@BOTH
def test_a_reset_is_for_the_caller_alone(enforce: Enforce, operator: Client) -> None:
    slots = {"limit": 5, "algorithm": "concurrency", "events": ["inflight"]}
    store = enforce(api={"rate": "2/min"}, all={"rate": "2/min", "key": "everyone"}, slots=slots)
    refuse("ip:192.0.2.1")
    if isinstance(store, RedisStore):
        RecordFlusher(store)()
    said = text(operator.post(RESET, {"ident": "192.0.2.1", "scope": "search"}, follow=True))
    assert "The budgets of ip:192.0.2.1 are full again." in said
    assert "refused by rule 'all'" in said and "api allowed 0 2" in said
    assert LogEntry.objects.get().object_repr == "ip:192.0.2.1"
    of_nobody = ident_for_logs("ip:192.0.2.1")
    for ident, said in (("\x00", "This text names no caller."), (of_nobody, "Nobody knows whose this is")):
        assert said in text(operator.post(RESET, {"ident": ident}, follow=True))


def test_rows_of_keys_and_tenants_are_named_to_those_who_may_view_them(
    enforce: Enforce, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "key_types", {Group})
    monkeypatch.setattr(typed_keys, "key_types", {Group})
    enforce(api={"rate": "2/min", "key": "api_key"}, TENANT="user.logentry.user", DATABASE_RULES=True)
    acme, long = Group.objects.create(pk=5, name="ACME Ltd"), Group.objects.create(pk=6, name="k" * 16)
    idents = {str(keys.api_key(row)): f"API key {row.pk}" for row in (acme, long)}
    staff = user("view_throttlerule", "view_throttleoverride", "view_throttleconnection", "view_user")
    staff_ident = f"tenant:{staff.pk}"
    for ident in (*idents, staff_ident, "tenant:none"):
        kind, _, value = ident.partition(":")
        shown = value if kind == "tenant" else f"{HASHED}{value}"
        ThrottleOverride.objects.create(kind=kind, value=shown, effect="block", reason="ours")
    sockets(("a", next(iter(idents))))
    client.force_login(staff)
    pages = (
        PAGE + "?ident=api_key:auth.group:5",
        url("throttleoverride_changelist"),
        url("throttleconnection_changelist"),
    )
    assert all("API key 5" not in text(client.get(page)) for page in pages)
    staff.user_permissions.add(Permission.objects.get(codename="view_group"))
    assert all("API key 5, ACME Ltd" in text(client.get(page)) for page in pages)
    listed = text(client.get(pages[1]))
    assert f"Tenant {staff.pk}, somebody" in listed and "Tenant none" in listed
    assert "API key 6 " in listed and long.name not in listed, "it may be the key itself"
    assert "auth.User has no row 'none'" in words(client, ident="tenant:none").replace("auth.user", "auth.User")


OVERVIEW, COSTS = url("overview"), url("costs")


@BOTH
def test_rules_with_what_they_did(enforce: Enforce, operator: Client) -> None:
    store = enforce(api={"rate": "3/hour"}, idle={"rate": "3/hour"})
    rules = [rule for rule in rulebook.current().rules if rule.name == "api"]
    assert call(store, rules, "user:1", 4) == 3
    if isinstance(store, RedisStore):
        RecordFlusher(store)()
    shown = operator.get(url("throttleoverview_changelist"), follow=True)
    page, reference = shown.content.decode(), ident_for_logs("user:1")
    assert "25.0%" in page and 'aria-label="4 calls, 3 allowed"' in page
    assert f"api Try a stricter limit Refused most: {reference} (1) 1 25.0% 4 " in text(shown)
    assert f"{url('throttlerule_add')}?replace=api#rule-trial" in page and f"{PAGE}?ident={reference}" in page
    assert "1 rule decided nothing in the last day idle" in text(shown)
    if isinstance(store, RedisStore):
        assert "1 of 1 processes have the same rules in force" in page and f"{os.getpid()} on " in page
    with translation.override("de"):
        german = operator.get(OVERVIEW).content.decode()
    assert ">25,0\xa0%<" in german and 'aria-label="4 Aufrufe, 3 zugelassen"' in german


@BOTH
def test_routes_with_what_they_used(enforce: Enforce, operator: Client) -> None:
    store = enforce()
    assert "No requests were measured" in text(operator.get(COSTS))
    for _ in range(3):
        route_costs.add("orders", used(12, 1500, 0.25, 20_480))
    route_costs.add("search", used(40, 10, 0.5))
    if isinstance(store, RedisStore):
        CostFlusher(store)()
    page = operator.get(COSTS, {"by": "queries"})
    assert "orders 3 36 12 12.5 12.5 12.5" in text(page)
    assert ("in all processes" if store.is_remote else "this process") in text(page)
    assert all(f'<option value="{name}"' in page.content.decode() for name in MEASURES)
    for by, first in (("rows", "orders"), ("queries", "search")):
        shown = operator.get(COSTS, {"by": by}).content.decode()
        assert min(shown.index(name) for name in (">orders<", ">search<")) == shown.index(f">{first}<")


def save(client: Client, **values: Any) -> ThrottleCandidate:
    row = ThrottleRule.objects.filter(name="api").first() or ThrottleRule.objects.create(name="api", rate="5/min")
    page = url("throttlerule_change", row.pk)
    posted = form(client, page, **{"rate": "3/min", "edit_reason": "try it", **values})
    answer = client.post(page, {**posted, "_candidate": "1"})
    candidate = ThrottleCandidate.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, url("throttlecandidate_change", candidate.pk))
    return candidate


@pytest.mark.parametrize(
    ("step", "rate", "action"), [("promote", "4/min", "promoted"), ("discard", "5/min", "discarded")]
)
@pytest.mark.row("R09")
def test_an_edit_is_saved_as_a_candidate_and_one_click_ends_it(
    operator: Client, step: str, rate: str, action: str
) -> None:
    misspelt = save(operator, scopes="serach")
    assert "did you mean 'search'?" in text(operator.get(url("throttlecandidate_change", misspelt.pk)))
    candidate = save(operator, name="renamed")
    assert ThrottleRule.objects.get().rate == "5/min"
    assert (candidate.name, candidate.created_by) == ("api", "somebody")
    assert candidate.options == {"name": "api", "rate": "3/min"}
    line = ThrottleChange.objects.latest("pk")
    assert (line.kind, line.who, line.reason) == ("candidate", "somebody", "try it")
    ThrottleCandidate.objects.update(created_at=timezone.now() - timedelta(hours=2))
    assert timedelta(minutes=59) < timezone.now() - ThrottleCandidate.objects.get().since < timedelta(minutes=61)
    again = save(operator, rate="4/min")
    assert again.options["rate"] == "4/min"
    assert again.since == again.created_at > timezone.now() - timedelta(minutes=1)
    assert operator.post(url(step, again.pk), follow=True).status_code == 200
    assert ThrottleRule.objects.get().rate == rate
    assert not ThrottleCandidate.objects.exists()
    line = ThrottleChange.objects.filter(kind="candidate").latest("pk")
    assert (line.who, line.action) == ("somebody", action)


def test_the_picture_has_a_bar_for_each_rule_and_minute() -> None:
    now = timezone.now()
    shown = picture([(now - timedelta(minutes=59), 0, 2), (now - timedelta(minutes=1), 8, 4)], now)
    assert "refused 8 calls, the candidate 6" in shown
    bars = re.findall(r'<rect class="(.+?)" x="(.+?)" y="(.+?)" .*?height="(.+?)"', shown)
    first, live, second = bars
    assert first == ("candidate", "3.60", "48.00", "16.00")
    assert (live, second) == (("live", "464.00", "0.00", "64.00"), ("candidate", "467.60", "32.00", "32.00"))


def revert(client: Client, line: ThrottleChange, **posted: str) -> str:
    answer = client.post(url("revert", line.pk), posted, follow=True)
    return " ".join(map(str, answer.context["messages"]))


@pytest.mark.row("R09")
def test_one_click_reverts_an_edit_a_removal_and_an_addition(operator: Client) -> None:
    row = ThrottleRule.objects.create(name="api", rate="5/min")
    ThrottleRule.objects.update(rate="7/min")
    edit = ThrottleChange.objects.latest("pk")
    ThrottleRule.objects.update(rate="9/min")
    assert revert(operator, edit) == "Not reverted. It has been edited since: rate: 7/min → 9/min."
    assert "Revert all the same" in operator.get(url("throttlechange_change", edit.pk) + "?confirm=1").content.decode()
    assert "Reverted" in revert(operator, edit, confirmed="1")
    assert ThrottleRule.objects.get().rate == "5/min"
    ThrottleRule.objects.update(rate="7/min")
    edit = ThrottleChange.objects.latest("pk")
    assert revert(operator, edit) == "Reverted: rate: 7/min → 5/min."
    reverted = ThrottleChange.objects.latest("pk")
    assert (reverted.action, reverted.who, reverted.reason) == ("reverted", "somebody", f"revert of change {edit.pk}")
    assert "nothing to revert" in revert(operator, edit)
    row.delete()
    assert revert(operator, ThrottleChange.objects.latest("pk")) == "Reverted: Rule api is there again."
    assert ThrottleRule.objects.get().rate == "5/min"
    revert(operator, ThrottleChange.objects.earliest("pk"))
    assert not ThrottleRule.objects.exists()


CONNECTIONS, CLOSE = url("throttleconnection_changelist"), url("throttleconnection_close")


def process(store: Store, search: str = "") -> Store:
    """A process that Redis knows, and that has heard of whoever looks."""
    if isinstance(store, RedisStore):
        Reconciler(store).beat()
    overview.get_overview(store, search)
    SocketControl(store)()
    overview.clear_overviews()
    return store


@BOTH
@pytest.mark.row("A57")
def test_sockets_are_listed_and_closed_one_or_all_of_an_identity(operator: Client, enforce: Enforce) -> None:
    store, pk = enforce(), get_user_model().objects.get(username="somebody").pk
    user = f"user:{pk}"
    opened = sockets(("a", user), ("b", user), ("c", f"{user}1"), ("d", user))
    for socket in open_sockets.all():
        socket.opened -= 1000 if socket.id != "d" else 11_000
    opened[0].received, opened[0].last_received = 3, opened[0].last_received - 330
    process(store)
    shown = text(operator.get(CONNECTIONS))
    row = f"User {pk}, somebody"
    rows = (f"{user} explain {row} 3 1 Close all", f"{user}1 explain 1 1 ", f"{row} 192.0.2.7 chat")
    assert [row for row in ("4 open connections", *rows) if row not in shown] == []
    assert all(row in shown for row in ("16 min 5 min ago 3", "16 min none 0", "3 h 3 min none 0"))
    assert ("in memory, so only what this process holds" in shown) == (not isinstance(store, RedisStore))
    for typed in ({"tag": "*"}, {"tag": user}, {"tag": ""}, {}, {"uid": "{p}", "socket": "../a"}):
        assert messages(operator.post(CLOSE, typed))[-1] == "It has gone already."
    assert LogEntry.objects.count() == 0

    process(store, "user")
    answer = operator.post(CLOSE, {"uid": store.leases.uid, "socket": "a", "q": "user"})
    assert messages(answer)[-1] == f"The connection of {user} (chat, /ws/chat) is being closed."
    assert answer["Location"] == f"{CONNECTIONS}?q=user"
    SocketControl(store)()
    assert [socket.closed is not None for socket in opened] == [True, False, False, False]
    assert (opened[0].closed.code, opened[0].closed.payload["code"]) == (4410, "closed")  # type: ignore[index, union-attr]
    row = LogEntry.objects.get()
    entry = (row.object_repr, row.get_change_message(), row.user.get_username(), row.get_admin_url())
    assert entry == (f"{user} (chat, /ws/chat)", "Closed.", "somebody", None)
    assert f"{user} (chat, /ws/chat)" in text(operator.get(reverse("admin:index")))
    process(store)
    answer = operator.post(CLOSE, {"tag": store.control.ident_hash(user)})
    assert (
        messages(answer)[-1].startswith("All ") and f"connections of {user} are being closed." in messages(answer)[-1]
    )
    SocketControl(store)()
    assert [socket.closed is not None for socket in opened] == [True, True, False, True]
    assert LogEntry.objects.first().object_repr == user  # type: ignore[union-attr]


@pytest.mark.row("A56")
@REDIS
def test_a_crowd_costs_next_to_nothing(
    operator: Client, enforce: Enforce, redis_server: RedisServer, monkeypatch: Any, figure: Any
) -> None:
    store = enforce()
    sockets(*((f"s{number}", f"user:{number}") for number in range(1000)))
    process(store)
    monkeypatch.setattr(overview, "COMPLETE_CACHE_SECONDS", 60.0)
    with redis_server.client() as client:
        client.eval("for i = 1, 10000 do redis.call('SET', 'other:' .. i, 1, 'EX', 600) end", 0)
        client.config_resetstat()
        pages = [operator.get(CONNECTIONS, {"part": "rows"}) for _ in range(10)]
        SocketControl(store)()
        stats = client.info("commandstats")
        client.flushall()
    asked = stats["cmdstat_evalsha"]["calls"]
    figure("scripts for ten looks at 1,000 sockets", asked)
    assert asked <= 8
    assert not {"cmdstat_keys", "cmdstat_scan"} & set(stats)
    assert "1000 open connections" in text(pages[-1]) and "And 800 more" in text(pages[-1])


@pytest.mark.usefixtures("redis_server")
def test_redis_is_away_or_a_setting_wrong(enforce: Enforce, operator: Client, settings: Any, monkeypatch: Any) -> None:
    enforce(api={"rate": "2/min"})
    away = redis_store(f"redis://127.0.0.1:{free_port()}/0")
    with monkeypatch.context() as patch:
        doors.count_in(away, patch)
        assert "does not answer" in words(operator, ident="192.0.2.1")
        assert "Nothing was reset" in text(operator.post(RESET, {"ident": "192.0.2.1"}, follow=True))
        for page in (COSTS, OVERVIEW):
            assert operator.post(page).status_code == 405
            assert "Redis does not answer" in text(operator.get(page))
    settings.DJANGO_THROTTLE = {"STORE": "disk"}
    assert "STORE is" in text(operator.get(CONNECTIONS))
    monkeypatch.setattr("django_throttle.admin.connections.get_store", lambda: away)
    shown = text(operator.get(CONNECTIONS))
    assert "Redis does not answer" in shown and "0 open connections" not in shown
    assert messages(operator.post(CLOSE, {"socket": "a"}))[0].startswith("Redis does not answer")


TRIAL = url("trial")
LOG = {"rate": "5/hour", "algorithm": "sliding_log"}


@pytest.fixture
def refused(enforce: Enforce) -> Any:
    store = enforce(api=LOG)
    for ident, times in {"ip:192.0.2.1": 9, "ip:192.0.2.2": 3, "ip:192.0.2.3": 1}.items():
        for _ in range(times):
            limiter.decide(Call("search", ("request",), KnownCaller(ident), method="GET"))
    if isinstance(store, RedisStore):
        RecordFlusher(store)()
    return store


def live(**values: Any) -> ThrottleRule:
    return ThrottleRule.objects.create(**{"name": "api", **LOG, **values})


def tried(client: Client, row: ThrottleRule, **values: Any) -> Any:
    posted = form(client, url("throttlerule_change", row.pk), **values)
    return client.post(f"{TRIAL}?row={row.pk}", {**posted, "span": "hour"})


def sides(answer: Any) -> dict[str, tuple[int, int]]:
    return {side["name"]: (side["replayed"].refused, len(side["replayed"].idents)) for side in answer.context["sides"]}


def test_those_who_are_refused_most_are_named_if_idents_are_recorded(operator: Client, enforce: Enforce) -> None:
    anna = User.objects.create_user("anna")
    enforce(api=LOG, RECORD_IDENTS=True)
    for _ in range(9):
        limiter.decide(Call("search", ("request",), KnownCaller(f"user:{anna.pk}"), method="GET"))
    (row,) = tried(operator, live(), rate="2/hour").context["affected"]
    assert (row["ident"], row["row_text"]) == (f"user:{anna.pk}", f"User {anna.pk}, anna")


def test_both_rules_are_tried_and_a_mistake_in_the_form_is_told(operator: Client, refused: Any) -> None:
    row = live()
    answer = tried(operator, row, rate="2/hour")
    assert sides(answer) == {"live rule": (4, 1), "edited rule": (8, 2)}
    most = [(each["ident"], each["numbers"]) for each in answer.context["affected"]]
    assert most == [(redis_keys.hashed("ip:192.0.2.1"), [4, 7]), (redis_keys.hashed("ip:192.0.2.2"), [0, 1])]
    text = answer.content.decode()
    assert "100.00% of the callers" in text and "192.0.2" not in text
    assert "live rule: 4 refused, 4 at most in one of" in text
    assert "cannot be tried on what was recorded: " in tried(operator, row, key="session").content.decode()
    assert sides(operator.post(TRIAL, {"span": "hour", "name": "api"})) == {"live rule": (4, 1)}
    text = tried(operator, row, rate="many", name=NASTY).content.decode()
    assert "Nothing was tried, as the form has a mistake" in text and "&#x27;many&#x27;" in text
    assert "<table" not in text and NASTY not in text
    own_records.reset()
    assert tried(operator, row).context["is_empty"]
    assert operator.get(TRIAL).status_code == 405


def test_who_may_only_see_tries_the_live_rule_and_others_nothing(client: Client, refused: Any) -> None:
    row, seer = live(), user("view_throttlerule")
    trial = f"{TRIAL}?row={row.pk}"
    assert client.post(trial).status_code == 302
    client.force_login(seer)
    assert 'id="rule-trial-hour"' in client.get(url("throttlerule_change", row.pk)).content.decode()
    answer = client.post(trial, {"span": "hour"})
    assert sides(answer) == {"live rule": (4, 1)}
    assert " ".join(answer.context["remarks"]) == "You may not edit rules."
    seer.user_permissions.clear()
    assert client.post(trial).status_code == 403


@pytest.fixture
def candidate() -> ThrottleCandidate:
    ThrottleRule.objects.create(name="api", rate="5/min")
    row = ThrottleCandidate.from_row(ThrottleRule(name="api", rate="3/min"), "api", "anna")
    row.save()
    return row


def test_to_add_a_rule_takes_the_permission_to_add(client: Client, candidate: ThrottleCandidate) -> None:
    operator = user("view_throttlerule", "change_throttlerule")
    client.force_login(operator)
    row = ThrottleRule.objects.get()
    row.rate = "9/min"
    row.save()
    edit = ThrottleChange.objects.latest("pk")
    row.delete()
    assert client.post(url("revert", edit.pk), {"confirmed": "1"}).status_code == 403
    page = url("throttlecandidate_change", candidate.pk)
    shown = client.get(page).content.decode()
    assert "Discard" in shown and "Promote" not in shown
    refused = client.post(page, form(client, page, starts_at_0="2030-01-01", starts_at_1="00:00"))
    assert errors(refused) == {"starts_at": ["It would be added to the rules, and you may not add rules."]}
    assert client.post(url("promote", candidate.pk)).status_code == 403
    assert (ThrottleRule.objects.count(), ThrottleCandidate.objects.count()) == (0, 1)
    operator.user_permissions.add(Permission.objects.get(codename="add_throttlerule"))
    assert "Promote" in client.get(page).content.decode()
    client.post(url("promote", candidate.pk))
    assert ThrottleRule.objects.get().rate == "3/min"
    ThrottleRule.objects.all().delete()
    assert "is there again" in revert(client, edit, confirmed="1")


def test_the_second_who_promotes_is_told(operator: Client, candidate: ThrottleCandidate, monkeypatch: Any) -> None:
    stale = ThrottleCandidate.objects.get()
    candidate.promote()
    lines = ThrottleChange.objects.count()
    for moment in ("later", "just before"):
        if moment == "just before":
            monkeypatch.setattr(ThrottleCandidateAdmin, "_candidate", lambda *_: stale)
        answer = operator.post(url("promote", stale.pk))
        assert messages(answer)[-1] == "Not promoted. The candidate was promoted or discarded meanwhile."
        assert operator.get(answer["Location"]).status_code == 200
        assert messages(operator.post(url("discard", stale.pk)))[-1].startswith("The candidate was promoted or discard")
    assert ThrottleChange.objects.count() == lines
