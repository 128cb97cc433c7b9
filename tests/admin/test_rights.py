"""Who may see which page of the admin and do what there, and that nothing that somebody typed runs there."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core import serializers
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_throttle import limiter, rulebook
from django_throttle.connections import overview
from django_throttle.connections.socket_control import SocketControl
from django_throttle.console.models import ThrottleCandidate
from django_throttle.console.recording import own_records, recorder
from django_throttle.console.route_costs import route_costs
from django_throttle.core import Rule
from django_throttle.core.overrides import candidate_name
from django_throttle.identity.call import Call
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.local.open_sockets import open_sockets
from django_throttle.models import ThrottleChange, ThrottleOverride, ThrottleRule
from django_throttle.observe.reports import ident_for_logs
from tests.admin.conftest import NASTY, Scripts, url, user
from tests.connections.evictions import sockets
from tests.console.test_recorder import refusal
from tests.console.test_route_costs import used
from tests.doors import Enforce, Store

pytestmark = pytest.mark.django_db
RULES, OVERRIDES = ({f"{action}_throttle{of}" for action in ("view", "change")} for of in ("rule", "override"))
CONNECTIONS = {"view_throttleconnection"}
API = {"rate": "2/min"}


class Site:
    """A site with a row of each kind, an open socket and a caller who is refused."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.rule = ThrottleRule.objects.create(name="night", rate="2/min", scopes=("search",))
        self.candidate = ThrottleCandidate.from_row(ThrottleRule(name="night", rate="1/min"), "night", "ada")
        self.candidate.save()
        ThrottleRule.objects.update(rate="3/min")
        self.edit = ThrottleChange.objects.get(kind="rule", action="changed")
        self.rule.refresh_from_db()
        until = timezone.now() + timedelta(hours=1)
        ip = {"kind": "ip", "value": "192.0.2.7", "effect": "block", "reason": "because"}
        self.override = ThrottleOverride.objects.create(**ip, until=until)
        (self.socket,) = sockets(("a", "user:1"))
        while limiter.decide(Call("search", ("request",), KnownCaller("ip:192.0.2.1"))).allowed:
            pass

    def state(self) -> list[Any]:
        SocketControl(self.store)()
        kinds = (ThrottleRule, ThrottleOverride, ThrottleCandidate)
        rows = [serializers.serialize("json", kind.objects.all()) for kind in kinds]
        left = limiter.Limiter([Rule("api", **API)], self.store).peek("ip:192.0.2.1").remaining
        return [*rows, self.socket.closed, left]


@pytest.fixture
def site(enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr("django_throttle.admin.connections.ANSWER_SECONDS", 0.1)
    open_sockets.clear()
    yield Site(enforce(api=API))
    open_sockets.clear()


#: The address of each page, and the permissions of which one is enough to see it.
PAGES: dict[str, tuple[Callable[[Site], str], set[str]]] = {
    "rules": (lambda site: url("throttlerule_changelist"), RULES),
    "rule": (lambda site: url("throttlerule_change", site.rule.pk), RULES),
    "add rule": (lambda site: url("throttlerule_add"), {"add_throttlerule"}),
    "preview": (lambda site: url("preview"), {*RULES, "add_throttlerule"}),
    "overview": (lambda site: url("overview"), RULES),
    "costs": (lambda site: url("costs"), RULES),
    "explain": (lambda site: url("explain") + "?ident=192.0.2.1", RULES),
    "overrides": (lambda site: url("throttleoverride_changelist"), OVERRIDES),
    "override": (lambda site: url("throttleoverride_change", site.override.pk), OVERRIDES),
    "add override": (lambda site: url("throttleoverride_add"), {"add_throttleoverride"}),
    "candidates": (lambda site: url("throttlecandidate_changelist"), RULES),
    "candidate": (lambda site: url("throttlecandidate_change", site.candidate.pk), RULES),
    "history": (lambda site: url("throttlechange_changelist"), {*RULES, *OVERRIDES}),
    "edit": (lambda site: url("throttlechange_change", site.edit.pk), RULES),
    "connections": (lambda site: url("throttleconnection_changelist"), CONNECTIONS),
    "rows of connections": (lambda site: url("throttleconnection_changelist") + "?part=rows", CONNECTIONS),
}
OF_OVERRIDES = url("throttleoverride_changelist")
TYPED = {"kind": "ip", "value": "192.0.2.8", "effect": "block", "lasting": "7200", "reason": "x", "rules": "*"}
#: What is posted to do something, and the permissions all of which it takes.
ACTIONS: dict[str, tuple[Callable[[Site], tuple[str, dict[str, Any]]], set[str]]] = {
    **{
        f"{action} an override": (
            lambda site, action=action: (OF_OVERRIDES, {"action": action, "_selected_action": site.override.pk}),
            {"change_throttleoverride"},
        )
        for action in ("end_now", "extend")
    },
    "add an override": (lambda site: (url("throttleoverride_add"), TYPED), {"add_throttleoverride"}),
    "promote": (lambda site: (url("promote", site.candidate.pk), {}), {"change_throttlerule"}),
    "discard": (lambda site: (url("discard", site.candidate.pk), {}), {"change_throttlerule"}),
    "revert": (lambda site: (url("revert", site.edit.pk), {}), {"change_throttlerule"}),
    "delete": (lambda site: (url("throttlerule_delete", site.rule.pk), {"post": "yes"}), {"delete_throttlerule"}),
    "close a connection": (
        lambda site: (url("throttleconnection_close"), {"uid": site.store.leases.uid, "socket": "a"}),
        {"view_throttleconnection", "close_throttleconnection"},
    ),
    "reset a caller": (
        lambda site: (url("explain_reset"), {"ident": "192.0.2.1"}),
        {"view_throttlerule", "add_throttleoverride"},
    ),
}


def every_permission() -> list[str]:
    ours = Permission.objects.filter(content_type__app_label="django_throttle")
    return sorted(ours.values_list("codename", flat=True))


def give(somebody: User, permissions: set[str]) -> None:
    somebody.user_permissions.set(Permission.objects.filter(codename__in=permissions))


@pytest.mark.row("A55")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_for_those_with_a_right_to_it(client: Client, site: Site, page: str) -> None:
    where, enough = PAGES[page]
    somebody, address = user(), where(site)
    assert client.get(address).status_code == 302, "nobody has logged in"
    client.force_login(somebody)
    seen = set()
    for permission in every_permission():
        give(somebody, {permission})
        answer = client.get(address)
        seen |= {permission} if answer.status_code == 200 else set()
        assert answer.status_code in (200, 302, 403)
    assert seen == enough
    User.objects.update(is_staff=False)
    assert client.get(address).status_code == 302
    User.objects.update(is_staff=True, is_superuser=True)
    assert client.get(address).status_code == 200


@pytest.mark.row("A54", "A55")
@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_takes_all_its_rights_a_post_and_a_token(site: Site, action: str) -> None:
    post, rights = ACTIONS[action]
    address, data = post(site)
    somebody, before = user(), site.state()
    strict, client = Client(enforce_csrf_checks=True), Client()
    client.post(address, data)
    client.force_login(somebody)
    for missing in rights:
        give(somebody, {*every_permission()} - {missing, missing.replace("view", "change")})  # who may edit may see
        assert client.post(address, data).status_code in (302, 403)
    User.objects.update(is_staff=False)
    assert client.post(address, data).status_code == 302
    User.objects.update(is_staff=True)
    give(somebody, rights | {"view_throttleoverride"} if "override" in action else rights)
    strict.force_login(somebody)
    assert strict.post(address, data).status_code == 403
    strict.get(address, data)
    assert site.state() == before
    assert LogEntry.objects.count() == 0
    assert client.post(address, data).status_code == 302
    assert site.state() != before
    lines = ThrottleChange.objects.filter(who="somebody")
    assert LogEntry.objects.filter(user=somebody).count() == 1 or lines.exists()


LISTS = ("throttlerule", "throttleoverride", "throttlecandidate", "throttlechange", "throttleconnection")
EVIL = f"{NASTY}</script><script>alert(1)</script>"


@pytest.fixture
def hostile(enforce: Enforce) -> Iterator[None]:
    forget()
    enforce(**{f"settings {NASTY}": {"rate": "1/s", "scopes": [NASTY]}}, RECORD_IDENTS=True, DATABASE_RULES=True)
    ThrottleRule.objects.create(name=NASTY, rate="2/s", scopes=(NASTY,), description=NASTY)
    ThrottleCandidate.from_row(ThrottleRule(name=NASTY, rate="1/s", description=NASTY), NASTY, NASTY).save()
    mallory = User.objects.create_user(f"mallory {NASTY}")
    for kind, value in (("tenant", NASTY), ("user", str(mallory.pk)), ("ip", "192.0.2.1")):
        ThrottleOverride.objects.create(kind=kind, value=value, effect="block", reason=NASTY, created_by=NASTY)
    ThrottleChange.objects.update(who=NASTY, reason=NASTY, words=NASTY)
    sockets((f"a{EVIL}", f"user:{EVIL}"), scope=f"chat{EVIL}", path=f"/{EVIL}")
    route_costs.add(NASTY, used(12, 1500, 0.25))
    for rule in (NASTY, candidate_name(NASTY)):
        for ident in (NASTY, "ip:192.0.2.1"):
            recorder.record(Call(NASTY, (NASTY,), KnownCaller(ident), method=NASTY), refusal(rule, ident), 0.001)
    rulebook.refresh()
    yield
    forget()


def forget() -> None:
    own_records.reset()
    open_sockets.clear()
    overview.clear_overviews()
    route_costs.take()


def every_page() -> list[str]:
    lists = [url(f"{name}_changelist") for name in LISTS]
    models = (ThrottleRule, ThrottleOverride, ThrottleCandidate, ThrottleChange)
    rows = [url(f"{model._meta.model_name}_change", row.pk) for model in models for row in model.objects.all()]
    asked = [f"?ident=192.0.2.1&{field}={quote(NASTY)}" for field in ("scope", "method", "event", "ident")]
    explained = [f"{url('explain')}{text}" for text in [*asked, f"?ident={ident_for_logs(NASTY)}", "?ident=192.0.2.1"]]
    first = url("throttlerule_delete", ThrottleRule.objects.get().pk), url("overview"), url("costs")
    return [*lists, *rows, *explained, *first]


@pytest.mark.row("A53")
def test_nothing_runs_on_any_page(operator: Client, hostile: None) -> None:
    silent = []
    for address in every_page():
        page = operator.get(address).content.decode()
        assert Scripts(page).found == [], address
        assert "<script>alert" not in page and NASTY not in page, address
        if "&lt;img" not in page:
            silent.append(address)
    assert silent == [], "pages that show nothing of it"


@pytest.mark.row("A53")
@pytest.mark.parametrize("name", LISTS)
def test_a_search_or_a_filter_is_text(operator: Client, hostile: None, name: str) -> None:
    fields = ("q", "who__exact", "algorithm__exact", "key", "kind__exact")
    for query in (f'q="{NASTY}</script>', "q=%25", *(f"{field}=%00" for field in fields)):
        with CaptureQueriesContext(connection) as asked:
            answer = operator.get(f"{url(f'{name}_changelist')}?{query}", follow=True)
        assert answer.status_code == 200 and Scripts(answer.content.decode()).found == []
        assert not any("\0" in each["sql"] for each in asked), "PostgreSQL cannot even be asked"
