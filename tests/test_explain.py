"""What would happen to a call, and why: it is what happens, and asking changes nothing."""

import io
import json
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.management import CommandError, call_command
from django.http import HttpRequest
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.authentication import TokenAuthentication

from django_throttle import limiter, rulebook
from django_throttle.core import Override, Rule
from django_throttle.decorators import throttle
from django_throttle.explain.predict import Explanation, explain
from django_throttle.identity import RequestCaller
from django_throttle.identity.call import Call
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.limiter import Limiter
from django_throttle.observe.reports import ident_for_logs
from django_throttle.rulebook import Snapshot
from django_throttle.rulebook.coverage import HypotheticalCall
from django_throttle.stores import MemoryStore
from tests.clock import FrozenClock
from tests.doors import BOTH, Enforce, Store

pytestmark = pytest.mark.django_db
POST = HypotheticalCall("search", "POST")
HERE = f"{__name__}."


def told(store: Store, ident: str = "ip:192.0.2.1", call: HypotheticalCall = POST) -> Explanation:
    return explain(store, rulebook.current(), call, KnownCaller(ident))


def ask(ident: str = "ip:192.0.2.1", scope: str = "search") -> bool:
    return limiter.decide(Call(scope, ("request", "inflight"), KnownCaller(ident), method="POST")).allowed


@BOTH
def test_it_says_what_happens_next_and_charges_nothing(enforce: Enforce) -> None:
    store = enforce(api={"rate": "3/min", "scopes": ["sea*"]}, all={"rate": "100/min", "key": "everyone"})
    for used in range(4):
        before = told(store)
        assert [(one.outcome.rule, one.used, one.outcome.limit) for one in before.rules] == [
            ("all", min(used, 3), 100),
            ("api", min(used, 3), 3),
        ]
        assert told(store).as_json() == before.as_json()
        assert (before.would == "allowed") == ask() == (used < 3)
    assert told(store).refusing == ("api",)
    last = told(store).sentence
    assert last.startswith("A POST to search by ip:192.0.2.1 would be refused by rule 'api': 3 of 3 used, free in ")
    assert told(store, "ip:192.0.2.2").sentence.endswith("allowed: rule 'api' is nearest to its limit, 0 of 3 used.")


@BOTH
def test_overrides_decide(enforce: Enforce) -> None:
    store = enforce(api={"rate": "1/min"})
    now = rulebook.current()
    subject = "ip:192.0.2.1"
    assert ask() and not ask()

    def under(**options: Any) -> Explanation:
        snapshot = Snapshot(now.rules, [Override(subject=subject, number=7, **options)])
        return explain(store, snapshot, POST, KnownCaller(subject))

    doubled = under(effect="multiply", factor=3)
    assert (doubled.would, doubled.rules[0].outcome.limit, doubled.rules[0].verdict) == ("allowed", 3, "allowed")
    exempt = under(effect="exempt")
    assert (exempt.would, exempt.rules[0].verdict, exempt.rules[0].used) == ("allowed", "exempt", 1)
    slots = Snapshot([Rule("sockets", limit=2, algorithm="concurrency")], [Override(subject=subject, effect="exempt")])
    (held,) = explain(store, slots, HypotheticalCall(), KnownCaller(subject)).rules
    assert (held.why, held.as_json()["limit"], held.as_json()["remaining"]) == ("0 open, without a limit", None, None)
    blocked = under(effect="block")
    assert blocked.sentence.endswith("would be refused by override 7: ip:192.0.2.1 is blocked.")
    assert blocked.as_json()["rules"][0]["override"]["effect"] == "block"
    changed = Override(subject=subject, number=7, effect="multiply", factor=0.5)
    planned = Snapshot([Rule("planned", "10/min", plans={"anonymous": "20/min"})], [changed])
    why = explain(store, planned, POST, KnownCaller(subject)).rules[0].why
    assert why == "0 of 10 by plan anonymous (changed by override 7) used"


@BOTH
def test_other_kinds_of_rules(enforce: Enforce) -> None:
    store = enforce(
        slots={"limit": 1, "algorithm": "concurrency", "events": ["inflight"]},
        quiet={"rate": "1/min", "action": "shadow"},
        damped={"rate": "100/s", "algorithm": "damper"},
        weights={"rate": "10/min", "unit": "bytes"},
    )
    first = limiter.decide(Call("search", ("request", "inflight"), KnownCaller("ip:192.0.2.1"), method="POST"))
    found = {one.outcome.rule: one for one in told(store).rules}
    assert next(iter(found)) == "damped" and found["damped"].chance == 0.0
    assert found["slots"].why == "1 of 1 open, free when one ends"
    assert found["quiet"].verdict == "shadowed"
    assert told(store).refusing == ("slots",)
    if isinstance(store, MemoryStore):
        store.leases.drop(*first.lease.lease_keys[0], first.lease.id)
        assert told(store).sentence.endswith("allowed: rule 'quiet' would refuse it, but only records.")


QUEUE = {"rate": "2/min", "algorithm": "leaky_bucket", "max_delay": 60}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({**QUEUE, "action": "delay"}, "allowed after 30 s in the queue of rule 'api'."),
        ({**QUEUE, "action": "defer"}, "done in 30 s and answered 202, by rule 'api'."),
        ({"rate": "1/week", "algorithm": "sliding_log"}, "refused by rule 'api': 1 of 1 used, free in 7 days."),
        ({"rate": "9/min", "scopes": ["chat"]}, "allowed: no rule that refuses counts it."),
    ],
)
def test_how_a_call_is_decided(enforce: Enforce, options: dict[str, Any], said: str) -> None:
    store = enforce(api=options)
    ask()
    assert told(store).sentence.endswith(f" by ip:192.0.2.1 would be {said}"), told(store).sentence
    blocked = Snapshot(rulebook.current().rules, [Override(subject="ip:192.0.2.1", number=7, effect="block")])
    assert "refused by override 7" in explain(store, blocked, POST, KnownCaller("ip:192.0.2.1")).sentence


RULES = st.builds(
    Rule,
    rate=st.just("5/min"),
    name=st.sampled_from("abcdef"),
    scopes=st.sampled_from([("*",), ("search",), ("s?arch", "x"), ("chat",)]),
    key=st.sampled_from(["ip", "user", "user_or_ip", "everyone", "user+ip", "tenant"]),
    methods=st.sampled_from([(), ("GET",), ("POST", "PUT")]),
    audience=st.sampled_from([(), ("staff",)]),
)


@given(rules=st.lists(RULES, max_size=6, unique_by=lambda rule: rule.name))
def test_the_rules_that_count_are_those_that_are_charged(rules: list[Rule]) -> None:
    snapshot, caller = Snapshot(rules), KnownCaller("ip:192.0.2.1")
    charged = [charge.rule.name for charge in snapshot.match(Call("search", POST.events, caller, method="POST"))]
    explanation = explain(MemoryStore(FrozenClock()), snapshot, POST, caller)
    assert [rule.outcome.rule for rule in explanation.rules if not rule.counting.may_not_count] == charged


class KeyAuthentication(TokenAuthentication):
    model = LogEntry  # a row that has a user


def explained(ident: str, **options: str) -> Any:
    out = io.StringIO()
    call_command("throttle_explain", ident, "--json", **options, stdout=out)
    return json.loads(out.getvalue())


def plan_of_key(request: Any) -> str:
    return str(request.auth.object_repr)


def plan_of_either(subject: Any) -> str:
    """A function gets a request, or the ASGI scope of a socket."""
    return str(subject.auth.object_repr if isinstance(subject, HttpRequest) else subject["user"].first_name)


def plan_of_header(request: Any) -> str:
    return str(getattr(request, "headers", {}).get("Plan", "free"))


@pytest.mark.parametrize(
    ("function", "would"), [("plan_of_key", "allowed"), ("plan_of_either", "allowed"), ("plan_of_header", None)]
)
def test_the_plan_of_an_api_key(
    enforce: Enforce, settings: Any, django_user_model: Any, function: str, would: str | None
) -> None:
    settings.REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": [f"{HERE}KeyAuthentication"]}
    plan = f"{HERE}{function}:pro"
    enforce(api={"rate": "2/hour", "key": "api_key", "plans": {plan: "100/hour"}})
    user = django_user_model.objects.create_user("anna", first_name="pro")
    row = LogEntry.objects.create(user=user, object_repr="pro", action_flag=CHANGE)
    request: Any = RequestFactory().get("/", headers={"plan": "pro"})
    request.user, request.auth = user, row
    caller = RequestCaller(request)
    assert all(limiter.decide(Call("search", ("request",), caller, method="GET")).allowed for _ in range(5))
    ident = str(caller.ident("api_key"))
    for typed in (f"api_key:admin.logentry:{row.pk}", ident, ident_for_logs(ident)):
        told = explained(typed)
        assert (told["would"], told["rules"][0]["used"]) == (would, 5 if would else 2)
        if would is None:
            assert "nobody can tell, because of rule 'api'" in told["sentence"]
            assert told["sentence"].endswith(f"Only {HERE}{function} can tell, from a request.")
        else:
            assert told["rules"][0]["plan"] == plan


def plan_of_staff(request: Any) -> str | None:
    return "staff" if request.user.is_staff else None


@pytest.mark.parametrize("is_staff", [True, False])
def test_a_plan_that_a_function_tells_by_the_user(enforce: Enforce, django_user_model: Any, is_staff: bool) -> None:
    enforce(api={"rate": "2/hour", "key": "user", "plans": {f"{HERE}plan_of_staff:staff": "100/hour"}})
    request: Any = RequestFactory().get("/")
    request.user = django_user_model.objects.create_user("anna", is_staff=is_staff)
    passed = [limiter.decide(Call("search", ("request",), RequestCaller(request))).allowed for _ in range(5)]
    assert passed.count(True) == (5 if is_staff else 2)
    for typed in ("anna", str(RequestCaller(request).ident("user"))):
        answer = explained(typed)
        assert (answer["would"], answer["rules"][0]["used"]) == (("allowed", 5) if is_staff else ("refused", 2))


@pytest.mark.parametrize("plan", ["staff", f"{HERE}plan_of_staff:staff"])
def test_nobody_can_tell_whether_the_code_names_a_user_or_a_text(
    enforce: Enforce, django_user_model: Any, plan: str
) -> None:
    enforce(mails={"rate": "9/hour", "key": "ip", "scopes": ["mails"], "plans": {plan: "1/hour"}})
    user = django_user_model.objects.create_user("anna", is_staff=True)
    allows = throttle("mails", ident=lambda: user)(lambda: True)
    assert allows()
    answer = explained(f"user:{user.pk}")
    assert answer["would"] is None
    assert answer["sentence"].endswith(
        f"(where the code names user:{user.pk} itself, if the caller has no plan by {plan})."
    )


@pytest.mark.parametrize("key", ["everyone", "tenant"])
def test_a_rule_counts_by_its_key_and_whom_the_code_names(
    enforce: Enforce, settings: Any, django_user_model: Any, key: str
) -> None:
    enforce(mails={"rate": "2/hour", "key": key, "scopes": ["mails"]})
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "TENANT": "user.last_name"}
    user = django_user_model.objects.create_user("anna", last_name="acme")
    allows = throttle("mails", ident=lambda: user)(lambda: True)
    assert allows() and allows()
    answer = explained("anna")
    assert answer["would"] is None
    assert [(rule["name"], rule["used"]) for rule in answer["rules"]] == [("mails", 0), ("mails", 2)]
    assert f"(where the code names user:{user.pk} itself)" in answer["sentence"]


@pytest.mark.parametrize("ident", ["account:anna", "anna b.", "x" * 400])
def test_idents_that_a_decorator_makes(enforce: Enforce, ident: str) -> None:
    enforce(mails={"rate": "2/hour", "scopes": ["none"]}, all={"rate": "1/hour", "key": "everyone", "scopes": ["x"]})

    @throttle("mails", ident=lambda: ident)
    def send() -> bool:
        return True

    with pytest.raises(CommandError):
        explained(ident)
    for used, would in ((1, "allowed"), (2, "refused")):
        send()
        told = explained(ident)
        assert [(rule["name"], rule["used"]) for rule in told["rules"]] == [("mails", used)]
        assert told["would"] == would, told["sentence"]


def tenant(request: Any) -> str:
    return str(request.user.last_name)


ACME, STAFF = {"audience": ["tenant:acme"]}, {"audience": ["staff"]}


@pytest.mark.parametrize(
    ("options", "ident", "would", "who"),
    [
        (ACME, "bob", None, tenant), ({**ACME, "key": "ip"}, "ip:5.5.5.5", None, tenant),
        ({**STAFF, "key": "ip"}, "ip:5.5.5.5", None, None), ({"plans": {"tenant:acme": "50/min"}}, "bob", None, tenant),
        ({"key": "ip", "plans": {"authenticated": "50/min"}}, "ip:5.5.5.5", None, None),
        (STAFF, "bob", "refused", None), (STAFF, "ip:5.5.5.5", "allowed", None),
        ({"key": "ip", "audience": ["staff", "tenant:b"]}, "ip:5.5.5.5", None, None),
    ],
)  # fmt: skip
def test_who_is_at_an_address_and_the_tenant_of_a_function_are_not_known(
    enforce: Enforce, django_user_model: Any, options: Any, ident: str, would: str | None, who: Any
) -> None:
    rule = {"rate": "3/min", "algorithm": "fixed_window", "scopes": ["s"], **options}
    enforce(api=rule, TENANT=f"{HERE}tenant" if who else "")
    request: Any = RequestFactory().get("/", REMOTE_ADDR="5.5.5.5")
    request.user = django_user_model.objects.create_user("bob", last_name="acme", is_staff=True)
    decided = [limiter.decide(Call("s", ("request",), RequestCaller(request), method="GET")).allowed for _ in range(4)]
    assert decided == [True] * 3 + ["plans" in options]
    answer = explained(ident, scope="s", method="GET")
    assert answer["would"] == would, answer["sentence"]
    assert answer["sentence"].endswith("tenant can tell, from a request.") == (who is not None)


def two(request: Any) -> int:
    return 2


def test_what_a_function_says_a_call_costs_is_not_known(enforce: Enforce) -> None:
    store = enforce(api={"rate": "3/hour", "key": "ip", "cost": f"{HERE}two", "algorithm": "fixed_window"})
    for spent, would in ((0, None), (2, None), (1, "refused")):
        Limiter([Rule("api", "3/hour", key="ip", algorithm="fixed_window")], store).acquire("ip:192.0.2.1", spent)
        assert explained("ip:192.0.2.1")["would"] == would
