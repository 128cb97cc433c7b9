"""Whom an operator means, among them API keys, and all that is told of a caller."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.http import HttpResponse
from django.test import RequestFactory

from django_throttle import limiter, rulebook
from django_throttle.connections import overview
from django_throttle.console.recording import RecordFlusher, own_records
from django_throttle.core import Override, Rule
from django_throttle.decorators import throttle
from django_throttle.exceptions import InvalidIdent, InvalidRule
from django_throttle.explain.find_caller import find_caller, read_ident
from django_throttle.explain.why_refused import CallerExplanation, explain_caller
from django_throttle.identity.call import Call
from django_throttle.identity.keys import api_key, key_types
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.local.open_sockets import open_sockets
from django_throttle.models import ThrottleOverride
from django_throttle.models.override import override_warnings
from django_throttle.observe.reports import ident_for_logs
from django_throttle.rulebook import Snapshot
from django_throttle.rulebook.coverage import HypotheticalCall
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.testing import override_rules, use_up
from tests.connections.evictions import sockets
from tests.doors import BOTH, Enforce, Store

pytestmark = pytest.mark.django_db


def test_overrides_with_their_reasons_the_one_that_precedes_first(enforce: Enforce) -> None:
    store = enforce(api={"rate": "1/min"}, DATABASE_RULES=True)
    user = User.objects.create_user("anna")
    common: dict[str, Any] = {"kind": "user", "value": str(user.pk), "rules": "*"}
    ThrottleOverride.objects.create(**common, effect="multiply", factor=3, reason="a campaign")
    ThrottleOverride.objects.create(**common, effect="block", reason="<b>abuse")
    explanation = explain_caller(store, rulebook.refresh(), HypotheticalCall("search"), "anna")
    assert [row.reason for row in explanation.rows] == ["<b>abuse", "a campaign"]
    answer = explanation.as_json()
    assert [row["reason"] for row in answer["overrides"]] == ["<b>abuse", "a campaign"]
    assert (answer["would"], answer["rules"][0]["override"]["reason"]) == ("refused", "<b>abuse")


@pytest.fixture(autouse=True)
def nobody() -> Iterator[None]:
    open_sockets.clear()
    overview.clear_overviews()
    own_records.reset()
    yield
    open_sockets.clear()


def test_open_sockets(enforce: Enforce) -> None:
    store = enforce(api={"rate": "1/min"})
    sockets(("a", "ip:192.0.2.1"), ("b", "ip:192.0.2.1"), ("c", "ip:192.0.2.11"))
    explanation: CallerExplanation = explain_caller(store, rulebook.current(), HypotheticalCall(), "192.0.2.1")
    assert (explanation.open, explanation.is_whole) == (2, True)


def refused(ident: str, store: Store, scope: str = "search") -> None:
    call = Call(scope, ("request",), KnownCaller(ident), method="POST")
    while limiter.decide(call).allowed:
        pass
    limiter.decide(call)
    if isinstance(store, RedisStore):
        RecordFlusher(store)()


@BOTH
def test_what_was_refused_lately_also_by_the_reference_of_an_error(enforce: Enforce) -> None:
    store = enforce(api={"rate": "2/min"})
    refused("ip:192.0.2.1", store)
    explanation = explain_caller(store, rulebook.current(), HypotheticalCall(), "192.0.2.1")
    last, before = explanation.recent
    assert (last.scope, last.method, last.rule, last.reason) == ("search", "POST", "api", "exceeded")
    assert last.at > before.at
    assert explanation.refusal_groups == [(2, last)]
    assert [row["at"] for row in explanation.as_json()["recent"]] == [last.at.isoformat(), before.at.isoformat()]
    assert explain_caller(store, rulebook.current(), HypotheticalCall(), "192.0.2.2").recent == []
    by_tag = explain_caller(store, rulebook.current(), HypotheticalCall(), ident_for_logs("ip:192.0.2.1"))
    assert (by_tag.explanation, by_tag.recent) == (None, [last, before])
    assert by_tag.as_json()["would"] is None


def test_of_a_scope_that_is_asked_about_only_its_refusals_are_told(enforce: Enforce) -> None:
    store = enforce(api={"rate": "2/min"})
    for scope in ("search", "chat" * 50):
        refused("ip:192.0.2.1", store, scope)
    for asked, scopes in {"": {"search", "chat" * 25}, "chat" * 50: {"chat" * 25}, "cha": set()}.items():
        for typed in ("192.0.2.1", ident_for_logs("ip:192.0.2.1")):
            call = HypotheticalCall(asked) if asked else HypotheticalCall()
            assert {
                refusal.scope for refusal in explain_caller(store, rulebook.current(), call, typed).recent
            } == scopes


RULES = Snapshot(
    [
        Rule("a", "1/s", key="shop.limits.plan"),
        Rule("b", "1/s", key="ip+shop.limits.size"),
        Rule("c", "1/s", key="django_throttle.contrib.logins.login_name"),
    ],
    [Override(subject="ip:198.51.100.0/24", effect="block", number=1)],
)


def name_of(typed: str) -> str:
    return find_caller(typed, RULES, MemoryStore()).name


@pytest.mark.parametrize(
    ("typed", "ident"),
    [
        (" 203.0.113.9 ", "ip:203.0.113.9"), ("ip:2001:db8::1", "ip:2001:db8::/64"), ("everyone", "everyone"),
        ("shop.limits.plan:gold", "shop.limits.plan:gold"),
        ("ip+shop.limits.size:ip:::1+shop.limits.size:a%2Bb", "ip+shop.limits.size:ip:::/64+shop.limits.size:a%2Bb"),
        ("api_key+tenant:ip:2001:db8::1+tenant:acme", "api_key+tenant:ip:2001:db8::/64+tenant:acme"),
        ("tenant+session:~" + "0a" * 32, "tenant+session:~" + "0a" * 32),
        ("api_key:" + "aB3_" * 5 + "aB", "api_key:" + "aB3_" * 5 + "aB"),
        ("django_throttle.contrib.logins.login_name: Ánna ", "django_throttle.contrib.logins.login_name:anna"),
    ],
)  # fmt: skip
def test_idents(typed: str, ident: str) -> None:
    assert name_of(typed) == ident


def test_users_by_name_mail_and_tag(django_user_model: Any) -> None:
    user = django_user_model.objects.create_user("anna", "anna@example.com")
    tag = ident_for_logs(f"user:{user.pk}")
    for typed in ("anna", "user:anna", "ANNA@example.com", tag, tag.upper()):
        assert name_of(typed) == f"user:{user.pk}"
    assert name_of("tenant+user:tenant:acme+user:anna") == f"tenant+user:tenant:acme+user:{user.pk}"
    assert name_of(ident_for_logs("everyone")) == "everyone"


@pytest.mark.parametrize(
    "typed", ["", "\x00", "a\x00", "x" * 2000, "order:1", "user:", "shop.limits.other:1", "<b>:1", "login_name:a"]
)
def test_what_names_nobody_is_told_with_an_example(typed: str) -> None:
    with pytest.raises(ValidationError, match="user:42"):
        name_of(typed)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("tenant+user:acme+1", "'tenant+user' is written like tenant+user:tenant:acme+user:42"),
        ("tenant+user:user:42+tenant:acme", "like tenant+user:tenant:acme+user:42"),
        ("tenant+user:tenant:acme+user:42+user:42", "like tenant+user:tenant:acme+user:42"),
        ("tenant+user:tenant:acme+user:nobody", "No user has the id, name or e-mail address 'nobody'"),
        ("ip+shop.limits.size:ip:192.0.2.1+2", "like ip+shop.limits.size:ip:203.0.113.9+shop.limits.size:VALUE"),
        ("user_or_ip:42", "'user_or_ip' is written like user:42"),
        ("tenant+user_or_ip:tenant:a+user_or_ip:5", "like tenant+user_or_ip:tenant:acme+user:42"),
        ("ip:192.0.2.300", "ip:203.0.113.9"),
    ],
)
def test_what_is_written_in_another_form_is_told_with_the_form(typed: str, said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        name_of(typed)


KEYS = {"keys": {"rate": "4/min", "key": "api_key", "plans": {"tests.test_why_refused.plans:large": "9/min"}}}
FROM_GROUP = {"rate": "4/min", "key": "user", "plans": {"group:large": "9/min"}}


def plans(request: Any) -> str:
    return "large" if request.headers.get("Plan") else ""


@pytest.fixture
def row() -> Iterator[Group]:
    """A row that a view of this process has taken for an API key."""
    key_types.clear()
    group = Group.objects.create(pk=5, name="secret-of-acme")
    with override_rules(KEYS):
        assert call(group).status_code == 200
    yield group
    key_types.clear()


@throttle("keys")
def view(request: Any) -> HttpResponse:
    return HttpResponse()


def call(accepted: Any = None, user: Any = None, **headers: str) -> Any:
    request: Any = RequestFactory().get("/", headers=headers)
    request.auth, request.user = accepted, user or User()
    return view(request)


def typed(value: str) -> ThrottleOverride:
    override = ThrottleOverride(kind="api_key", value=value, rules="*", effect="block", reason="test")
    override.full_clean()
    return override


@pytest.mark.parametrize("text", ["auth.group:5", "Auth.Group:05", "secret-of-acme"])
def test_a_row_and_its_key_are_what_its_calls_count_under(text: str, row: Group) -> None:
    assert typed(text).as_override().subject == read_ident(f"api_key:{text}") == api_key(row)
    assert list(override_warnings(typed(text), [])) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [("auth.group:6", "auth.group has no row '6'"), ("auth.grup:5", "no model 'auth.grup'; did you mean auth.group?")],
)
def test_what_names_nothing_is_refused(text: str, said: str, row: Group) -> None:
    for ask in (typed, lambda value: read_ident(f"api_key:{value}")):
        with pytest.raises(ValidationError, match=said.replace("?", r"\?")):
            ask(text)
    with pytest.raises(InvalidIdent, match=said.replace("?", r"\?")), override_rules(KEYS):
        use_up("keys", f"api_key:{text}")
    assert read_ident(f"api_key:{text}", checks=False).startswith("api_key:")  # a reset also of what is gone


@pytest.mark.parametrize("text", ["another-secret", "auth.user:1"])
def test_what_may_be_no_key_of_this_site_is_warned_of(text: str, row: Group) -> None:
    User.objects.create(pk=1)
    (warning,) = override_warnings(typed(text), [])
    assert "rows, written like auth.group:5" in warning


def test_a_text_is_a_key_where_calls_have_texts_or_none_was_seen(row: Group) -> None:
    key_types.clear()
    (warning,) = override_warnings(typed("another-secret"), [])
    assert "No API key was seen yet" in warning and "write the row, such as shop.apikey:5" in warning
    with override_rules(KEYS):
        call("some-text")
    assert list(override_warnings(typed("another-secret"), [])) == []


@override_rules(KEYS)
def test_a_row_can_be_used_up(row: Group) -> None:
    use_up("keys", row)
    for key in ("ip", "user"):
        with override_rules({"other": {"rate": "1/min", "key": key}}), pytest.raises(InvalidIdent, match=f"by {key}"):
            use_up("other", row)
    assert [call(row).status_code, call(row, Plan="large").status_code, call("else").status_code] == [429, 429, 200]
    with pytest.raises(InvalidRule, match="depends on the request: use up all of it"):
        use_up("keys", "api_key:auth.group:5", leaving=1)


TWICE = Override(subject="user:1", effect="multiply", factor=2)


@pytest.mark.parametrize("overrides", [[], [TWICE]])
@pytest.mark.parametrize("rule", [FROM_GROUP, {"rates": ["4/min", "9/day"], "key": "user"}], ids=["plan", "rates"])
def test_a_user_s_limit_can_be_used_up_but_for_some_calls(rule: Any, overrides: list[Override]) -> None:
    user = User.objects.create(pk=1)
    user.groups.add(Group.objects.create(name="large"))
    with override_rules({"keys": rule}):
        before = rulebook.pin(rulebook.Snapshot(rulebook.current().rules, overrides=overrides))
        use_up("keys", user, leaving=1)
        assert [call(user=user).status_code for _ in range(2)] == [200, 429]
        rulebook.pin(before)
