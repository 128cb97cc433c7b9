"""Which rules a call is asked, by their conditions, overrides, candidates and plans, and what it costs under each."""

from collections.abc import Callable
from enum import Enum
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction
from hypothesis import example, given
from hypothesis import strategies as st

from django_throttle.conf import conf
from django_throttle.core import Override, Rule
from django_throttle.core.key import secret_bytes
from django_throttle.core.overrides import Candidate, is_in_share
from django_throttle.core.rate import MAX_LIMIT
from django_throttle.core.scopes import covers
from django_throttle.identity import network, site_functions
from django_throttle.identity.call import Call
from django_throttle.rulebook import Snapshot
from django_throttle.rulebook.snapshot import MAX_CACHE_ENTRIES, Overrides, ScopeIndex
from tests.callers import GUEST, KeyedCaller, SameByEveryKey
from tests.inside import unsaid
from tests.rulebook.conftest import charged
from tests.servers import Stopwatch, slack


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    unsaid(site_functions, monkeypatch)


PRICES: list[Any] = []


def price(subject: Any) -> Any:
    return PRICES[0]


def asks(subject: Any) -> int:
    raise SynchronousOnlyOperation


async def later(subject: Any) -> int:
    return 1


def length(subject: Any) -> int:
    return len(subject["path"])


HERE = "tests.rulebook.test_snapshot."


class Asked(SameByEveryKey):
    """A caller of whom a function of the site may be asked, as there is a request."""

    def __init__(self, *traits: str, subject: Any = "request") -> None:
        super().__init__(*traits, subject=subject)


def matched(snapshot: Snapshot, caller: Asked | None = None, method: str = "", **options: Any) -> list[str]:
    call = Call("search", ("request",), caller or Asked(), method=method, **options)
    return [charge.rule.name for charge in snapshot.match(call)]


CONDITIONS = Snapshot(
    [
        Rule("all", "9/min"), Rule("guests", "9/min", audience=["anonymous"]),
        Rule("heads", "9/min", methods=["HEAD"]), Rule("reads", "9/min", methods=["get"]),
        Rule("some", "9/min", audience=["staff", "group:night shift", "tenant:a:b"]),
        Rule("writes", "9/min", methods=["POST", "put"]),
    ]
)  # fmt: skip


@pytest.mark.parametrize(
    ("method", "traits", "rules"),
    [
        ("GET", "", "all reads"), ("HEAD", "", "all heads reads"),
        *((method, "", "all writes") for method in ("POST", "PUT")),
        *((method, "", "all") for method in ("OPTIONS", "BREW", "")), ("", "anonymous", "all guests"),
        *(("", trait, "all some") for trait in ("staff", "group:night shift", "tenant:a:b")),
        *(("", trait, "all") for trait in ("authenticated", "group:night")),
    ],
)  # fmt: skip
def test_only_rules_whose_methods_and_audience_fit_or_are_not_named(method: str, traits: str, rules: str) -> None:
    assert matched(CONDITIONS, Asked("authenticated", traits), method=method) == rules.split()
    assert matched(CONDITIONS, method=method, rule="writes") == ["writes"] * (method in ("POST", "PUT"))


class TestCost:
    """A cost of the site's own making, which is multiplied by the cost that the entry point names."""

    @staticmethod
    def costs(function: str, cost: int = 1, **options: Any) -> list[int]:
        rule = Rule("priced", rates=("100/min", "900/day"), cost=f"{HERE}{function}", **options)
        call = Call("search", rule.events, Asked(subject={"path": "/chat/"}), cost, method="GET")
        return [charge.cost for charge in Snapshot([rule]).match(call)]

    @pytest.mark.parametrize(
        ("said", "cost", "charged"),
        [(1, 1, 1), (0, 1, 0), (7, 3, 21), (7, 0, 0), (MAX_LIMIT, 1, MAX_LIMIT), (10**30, 1, MAX_LIMIT + 1)],
    )
    def test_each_rate_is_charged_what_the_function_says(self, said: int, cost: int, charged: int, caplog: Any) -> None:
        PRICES[:] = [said]
        assert self.costs("price", cost) == [charged] * 2
        assert self.costs("length", events=["message"]) == [6, 6], "of the scope of a socket"
        assert not caplog.messages

    @pytest.mark.parametrize(("cost", "charged"), [(0, 0), (1, 5), (2, 5)])
    def test_a_call_has_its_bytes_unless_it_costs_nothing(self, cost: int, charged: int) -> None:
        call = Call("search", ("request",), Asked(), cost, size=5)
        assert Snapshot([Rule("volume", "9/min", unit="bytes")]).match(call).costs == (charged,)

    @pytest.mark.parametrize("said", [-1, True, 1.0, float("nan"), float("inf"), "5", None, [1]], ids=repr)
    def test_an_answer_that_is_no_cost_counts_one_and_is_logged(self, said: Any, caplog: Any) -> None:
        PRICES[:] = [said]
        assert self.costs("price") == [1, 1]
        assert "0 or more: the call under rule 'priced' counts 1" in caplog.text

    def test_so_does_a_function_that_fails_or_is_async(self, caplog: Any) -> None:
        PRICES[:] = []
        assert self.costs("price") == self.costs("later") == [1, 1]
        assert f"{HERE}price raised this" in caplog.text and "must not be async" in caplog.text
        with pytest.raises(SynchronousOnlyOperation):  # the entry point asks again in a thread
            self.costs("asks")


EVIL = [
    "^(a+)+$", "(a|aa)+$", "([a-zA-Z]+)*$", "(.*)*b", "(.*a){20}", "a" * 200 + "*", "*a" * 40, "?" * 200, "*?" * 100,
    "[" * 100, "[!" * 50, "[a-z" * 30, "[]" * 50, "]" * 100, "(?=a)" * 20, "(?i)A", "\\" * 50, "{9}", "a{2147483647}",
    "*" * 500, "**a**b" * 20, "(", ")", "|" * 50, "^" * 50, "$" * 50, "+" * 50, "\x00*", "é*" * 30,
    "*[a-z]*[a-z]*[a-z]*b",
]  # fmt: skip


@pytest.mark.row("A51")
def test_no_pattern_takes_long_whatever_it_looks_like(stopwatch: type[Stopwatch], figure: Callable[..., None]) -> None:
    snapshot = Snapshot([Rule(f"rule {number}", "9/min", scopes=[scope]) for number, scope in enumerate(EVIL)])
    with stopwatch(most=slack(0.5)) as watch:
        for scope in ("a" * 2048, "a" * 2047 + "!", "ab" * 1024):
            snapshot.match(Call(scope, ("request",), Asked()))
    figure("thirty patterns, three long names", watch.seconds * 1000, "ms")


@pytest.mark.row("A50")
def test_a_bracket_alone_is_a_name_and_never_everything() -> None:
    snapshot = Snapshot([Rule("bracket", "9/min", scopes=["("]), Rule("open", "9/min", scopes=["[a"])])
    assert snapshot.match(Call("a", ("request",), Asked())) == ()
    assert [charge.rule.name for charge in snapshot.match(Call("(", ("request",), Asked()))] == ["bracket"]


def test_rules_of_the_scope_and_the_event_that_have_an_ident_of_the_caller_apply_once() -> None:
    snapshot = Snapshot(
        [
            Rule("users", "9/min", key="user", events=("request", "message")),
            Rule("search", "9/min", scopes=("search",), cost=2),
            Rule("shop", "9/min", scopes=("shop:*", "basket"), key="ip"),
            Rule("off", "9/min", enabled=False),
            Rule("sockets", limit=2, algorithm="concurrency", events=("connection",)),
        ]
    )
    users, shop = ("users", "user:1", 1), ("shop", "ip:192.0.2.1", 1)
    assert charged(snapshot, "search", "request") == [("search", "user:1", 2), users]
    assert charged(snapshot, "search", "message") == charged(snapshot, "chat", "request", "message") == [users]
    assert charged(snapshot, "search", "task") == charged(snapshot, "chat", "request", caller=GUEST) == []
    assert charged(snapshot, "shop:list", "request") == charged(snapshot, "basket", "request") == [shop, users]
    assert charged(snapshot, "Shop:list", "request") == [users]
    assert snapshot.by_name("off") is not None and snapshot.by_name("nobody") is None
    for number in range(MAX_CACHE_ENTRIES + 10):
        charged(snapshot, f"scope {number}", "request")
    assert len(snapshot._prepared) <= MAX_CACHE_ENTRIES


texts = st.text("ab-*?[]!", min_size=1, max_size=6)


@given(st.lists(st.lists(texts, max_size=3), max_size=8), st.text("ab-[]!", max_size=6))
@example([["ab*ba"], ["*aa*a"]], "aba")
def test_scopes_are_found_as_each_pattern_by_itself_would_cover_them(patterns: list[list[str]], scope: str) -> None:
    assert ScopeIndex(patterns).find(scope) == [number for number, texts in enumerate(patterns) if covers(texts, scope)]


def override(subject: str, effect: str = "block", **options: Any) -> Override:
    return Override(subject=subject, effect=effect, **options)


def of(overrides: Overrides, caller: KeyedCaller) -> list[str]:
    return [override.subject for override in overrides.for_caller(caller)]


def test_each_kind_of_subject_is_found_the_most_specific_first() -> None:
    tag = "x" * 22
    subjects = [f"api_key:{tag}", "user:1", "ip:192.0.2.7", "ip:192.0.2.0/24", "tenant:acme", "group:a", "group:b"]
    overrides = Overrides(map(override, reversed([*subjects, "user:2", "ip:192.0.3.0/24", "tenant:b", "group:c"])))
    everybody = KeyedCaller(
        "group:a", "group:b", user="user:1", ip="ip:192.0.2.7", tenant="tenant:acme", api_key=f"api_key:{tag}"
    )
    assert of(overrides, everybody) == subjects
    assert of(overrides, KeyedCaller(ip="ip:192.0.2.8")) == ["ip:192.0.2.0/24"]
    assert of(overrides, KeyedCaller()) == []


@given(st.lists(st.ip_addresses(v=4), min_size=1, max_size=9), st.lists(st.integers(1, 32), min_size=9, max_size=9))
def test_networks_are_found_as_a_look_at_all_of_them_finds_them(addresses: list[Any], lengths: list[int]) -> None:
    networks = {
        ip_network((address, length), strict=False) for address, length in zip(addresses, lengths, strict=False)
    }
    subjects = {f"ip:{network.with_prefixlen}" for network in networks}
    overrides = Overrides(map(override, subjects))
    for address in [*addresses, ip_address("192.0.2.1")]:
        around = sorted((one for one in networks if address in one), key=lambda one: -one.prefixlen)
        assert of(overrides, KeyedCaller(ip=f"ip:{address}")) == [f"ip:{one.with_prefixlen}" for one in around]


def test_what_is_remembered_of_overrides_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_throttle.rulebook.snapshot.MAX_CACHE_ENTRIES", 2)
    twice = [override(f"ip:10.0.{number}.0/24", "multiply", factor=2) for number in range(5)]
    snapshot = Snapshot([Rule("api", "5/min", key="ip")], overrides=twice)
    for number in [*range(5)] * 2:
        (charge,) = snapshot.match(Call("search", ("request",), KeyedCaller(ip=f"ip:10.0.{number}.7")))
        assert charge.rule.rate == Rule("api", "10/min").rate
        assert len(snapshot.overrides._around) <= 2 >= len(snapshot.overrides._changed)


def test_ipv6_callers_are_networks_themselves() -> None:
    overrides = Overrides(
        map(override, ["ip:2001:db8::/64", "ip:2001:db8::/32", "ip:2001:db8:0:1::/64", "ip:192.0.2.0/24"])
    )
    assert of(overrides, KeyedCaller(ip=f"ip:{network('2001:db8::17', 64)}")) == [
        "ip:2001:db8::/64",
        "ip:2001:db8::/32",
    ]
    assert of(overrides, KeyedCaller(ip=f"ip:{network('::ffff:192.0.2.5', 64)}")) == ["ip:192.0.2.0/24"]
    # A wider one is not inside a narrower one.
    assert of(overrides, KeyedCaller(ip="ip:2001:db8::/48")) == ["ip:2001:db8::/32"]


LIVE = Rule("api", "5/min", key="user")
STRICT = Rule("api", "1/min", key="user")


def actions(user: str, *overrides: Override, share: float = 0.0) -> dict[str, bool]:
    snapshot = Snapshot([LIVE], overrides, candidates=[Candidate.of("api", STRICT, share)])
    found = snapshot.match(Call("search", ("request",), KeyedCaller(user=user)))
    return {charge.rule.name: charge.rule.is_shadow for charge in found}


def test_a_candidate_records_beside_the_live_rule_and_refuses_its_share_of_the_idents() -> None:
    assert actions("user:1") == {"api": False, "api (candidate)": True}
    assert actions("user:1", Override(subject="user:1", effect="exempt", rules=("api",))) == {}
    secret, halves = secret_bytes(conf().KEY_SECRET), set()
    for number in range(100):
        within = is_in_share(f"user:{number}", 0.3, secret)
        assert actions(f"user:{number}", share=0.3) == {"api": within, "api (candidate)": not within}
        halves.add(within)
    assert halves == {True, False}


SAYS: list[Any] = []


def tier(subject: Any) -> Any:
    SAYS.append(subject)
    if isinstance(subject, Exception):
        raise subject
    return subject


async def later_plan(subject: Any) -> str:
    return "pro"


def limit(rule: Rule, *traits: str, subject: Any = None, overrides: tuple[Override, ...] = ()) -> int | None:
    call = Call("search", rule.events, SameByEveryKey(*traits, subject=subject))
    (charge,) = Snapshot([rule], overrides).match(call)
    return charge.rule.limit


PLANS = Rule("api", "10/min", plans={"group:premium": "100/min", "staff": "50/min", "tenant:acme": {"rate": "70/min"}})


def test_the_first_plan_that_matches_holds() -> None:
    assert [limit(PLANS, *traits) for traits in ((), ("staff",), ("tenant:acme",), ("staff", "group:premium"))] == [
        *(10, 50, 70, 100)
    ]
    assert limit(Rule("open", limit=3, algorithm="concurrency", plans={"staff": 20}), "staff") == 20
    assert limit(PLANS, "staff", overrides=(Override(subject="user:1", effect="multiply", factor=3),)) == 150
    assert limit(PLANS.as_shadow(), "staff") == 50


BY_FUNCTION = Rule("api", "10/min", plans=[f"{HERE}tier{one}/min" for one in (":pro = 100", ":7 = 70", " = 20")])


@pytest.mark.parametrize(("said", "found"), [("pro", 100), (7, 70), ("basic", 20), ("", 10), (None, 10), (False, 10)])
def test_a_function_names_the_plan_and_is_called_once(said: Any, found: int) -> None:
    SAYS.clear()
    assert limit(BY_FUNCTION, subject=said) == found
    assert len(SAYS) == (said is not None)


NAMED = Rule("api", "10/min", plans={f"{HERE}tier:pro": "100/min"})
IS_PRO = Rule("api", "10/min", plans={f"{HERE}tier": "100/min"})
ASYNC = Rule("api", "10/min", plans={f"{HERE}later_plan": "100/min"})


class Level(Enum):
    LIST = ["pro"]


class Trap(str):  # noqa: SLOT000
    def __str__(self) -> str:
        raise RuntimeError("oh")

    __bool__ = __repr__ = __str__  # type: ignore[assignment]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("rule", "said", "logged"),
    [
        (NAMED, True, "gives True, not a text such as 'pro', or None: callers have no plan by it under rule 'api'"),
        (BY_FUNCTION, ["pro"], "not a text such as 'pro', or None"),
        (IS_PRO, str, ", not True or False"),
        (ASYNC, "x", "not True or False (it must not be async)"),
        (NAMED, ValueError("oh"), "tier raised this exception"),
        *((rule, Trap("pro"), "callers have no plan by it under rule 'api'") for rule in (NAMED, IS_PRO, BY_FUNCTION)),
        *((NAMED, said, "under rule 'api'") for said in (Level.LIST, User.objects.extra(where=["no_such_column = 1"]))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_answer_that_is_none_or_fails_is_logged_once_and_lifts_no_limit(
    rule: Rule, said: Any, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    with transaction.atomic():
        assert [limit(rule, subject=said), limit(rule, subject=said)] == [10, 10]
    (line,) = caplog.messages
    assert logged in f"{line}{caplog.text}"
    with pytest.raises(SynchronousOnlyOperation):  # the door asks again in a thread
        limit(BY_FUNCTION, subject=SynchronousOnlyOperation())
