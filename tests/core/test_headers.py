"""Header fields and policies: a table for every algorithm and version, and what a client reads back from them."""

from functools import partial
from typing import Any

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Decision, Outcome, Reason, Rule
from django_throttle.core import decision as core_decision
from django_throttle.core.commands import Answers, Charges, Decide, rule_set
from django_throttle.core.decision import combine_outcomes
from django_throttle.core.headers import (
    HEADER_VERSIONS,
    MAX_POLICIES,
    delay_seconds,
    may_see,
    plain_fields,
    policies,
    policy_names,
    rate_limit,
    tightest,
    visible,
    x_rate_limit,
)
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore
from tests import strategies
from tests.clock import FrozenClock

START = 1_700_000_000  # 20 s into a minute, and 800 s into an hour
NEVER: None = None
Calls = list[tuple[float, int]]


def decided(calls: Calls, *rules: Rule) -> Decision:
    """The decision about the last of the calls; each is so many seconds after the first and costs so much."""
    clock = FrozenClock(START)
    limiter = Limiter(rules, MemoryStore(clock))
    for after, cost in calls:
        clock.to(after)
        decision = limiter.acquire("ip:192.0.2.1", cost)
    return decision


def said(decision: Decision, version: str = "draft-11") -> dict[str, str]:
    return rate_limit(policies(visible([decision], lambda ident: True)), version)


def rule(algorithm: str, rate: str | None = "10/min", **options: Any) -> Rule:
    return Rule("api", rate, algorithm=algorithm, **options)


ONE, TEN = [(0.0, 1)], [(0.0, 10)]
REFUSED = [(0.0, 10), (15.0, 1)]

# Rule, calls, what RateLimit-Policy and RateLimit say after the name, and Retry-After.
TABLE: list[tuple[Rule, Calls, str, str, int | None]] = [
    # The minute ends 40 s after the start.
    (rule("fixed_window"), ONE, "q=10;w=60", "r=9;t=40", 1),
    (rule("fixed_window"), REFUSED, "q=10;w=60", "r=0;t=25", 25),
    (rule("fixed_window"), [(0.0, 0)], "q=10;w=60", "r=10", 1),
    (rule("fixed_window", timezone="Asia/Kolkata", rate="10/hour"), ONE, "q=10;w=3600", "r=9;t=1000", 1),
    (rule("fixed_window", "10/month"), ONE, "q=10;w=2678400", "r=9;t=1388800", 1),
    (rule("fixed_window", "10/500ms"), ONE, "q=10;w=1", "r=9;t=1", 1),
    (rule("sliding_log"), ONE, "q=10;w=60", "r=9;t=60", 1),
    (rule("sliding_log"), REFUSED, "q=10;w=60", "r=0;t=45", 45),
    (rule("sliding_log"), [(0.0, 9), (30.0, 2)], "q=10;w=60", "r=1;t=30", 30),
    (rule("sliding_log"), [(0.0, 11)], "q=10;w=60", "r=10", NEVER),
    # Its whole weight is gone at the end of the next minute; the first tenth of it 6 s after the end of this one.
    (rule("sliding_window"), ONE, "q=10;w=60", "r=9;t=100", 1),
    (rule("sliding_window"), REFUSED, "q=10;w=60", "r=0;t=31", 31),
    (rule("sliding_window", strict=True), REFUSED, "q=10;w=60", "r=0;t=85", 85),
    # One unit comes back every 6 s.
    (rule("gcra"), ONE, "q=10;w=60", "r=9;t=6", 1),
    (rule("gcra"), TEN, "q=10;w=60", "r=0;t=6", 1),
    (rule("gcra"), [(0.0, 10), (2.5, 1)], "q=10;w=60", "r=0;t=4", 4),
    (rule("token_bucket"), [(0.0, 9), (2.5, 0)], "q=10;w=60", "r=1;t=4", 1),
    (rule("token_bucket", burst=5), ONE, "q=5;w=30", "r=4;t=6", 1),
    (rule("token_bucket", burst=50), ONE, "q=50;w=300", "r=49;t=6", 1),
    (rule("token_bucket", "1013/min"), ONE, "q=1013;w=60", "r=1012;t=1", 1),
    (rule("token_bucket", refill="interval"), ONE, "q=10;w=60", "r=9;t=60", 1),
    (rule("token_bucket", refill="interval", burst=25), [(0.0, 25), (15.0, 1)], "q=25;w=180", "r=0;t=45", 45),
    (rule("leaky_bucket"), [(0.0, 10), (2.5, 3)], "q=10;w=60", "r=0;t=4", 16),
    (rule("leaky_bucket", action="delay", max_delay=12), ONE, "q=3;w=18", "r=2;t=6", 1),
    # Tolerated up to 25; told of are the 10.
    (rule("fixed_window", enforce_at=2.5), [(0.0, 15)], "q=10;w=60", "r=0;t=40", 1),
    (rule("gcra", enforce_at=2.5), ONE, "q=10;w=60", "r=9;t=6", 1),
    (rule("gcra", enforce_at=2.5), [(0.0, 15)], "q=10;w=60", "r=0;t=36", 1),
    (rule("gcra", enforce_at=2.5), [(0.0, 25), (0.0, 1)], "q=10;w=60", "r=0;t=6", 6),
    (rule("concurrency", None, limit=2), ONE, 'q=2;qu="concurrent-requests"', "r=1", 1),
    (rule("concurrency", None, limit=1), [(0.0, 1), (0.0, 1)], 'q=1;qu="concurrent-requests"', "r=0", 5),
]


@pytest.mark.parametrize(("limit", "calls", "policy", "left", "retry"), TABLE)
def test_what_each_algorithm_says(limit: Rule, calls: Calls, policy: str, left: str, retry: int | None) -> None:
    decision = decided(calls, limit)
    assert said(decision) == {"RateLimit-Policy": f'"api";{policy}', "RateLimit": f'"api";{left}'}
    assert delay_seconds(decision.retry_after) == retry


RATES = Rule("api", rates=("10/s", "100/min"), algorithm="fixed_window")
HELD = Rule("held", limit=4, algorithm="concurrency")
FIELDS: dict[str, dict[str, str]] = {
    "draft-11": {
        "RateLimit-Policy": '"api#s";q=10;w=1, "api#min";q=100;w=60, "held";q=4;qu="concurrent-requests"',
        "RateLimit": '"api#s";r=7;t=1, "api#min";r=97;t=40, "held";r=3',
    },
    "draft-07": {"RateLimit-Policy": "10;w=1, 100;w=60", "RateLimit": "limit=10, remaining=7, reset=1"},
    "draft-06": {
        "RateLimit-Policy": "10;w=1, 100;w=60", "RateLimit-Limit": "10", "RateLimit-Remaining": "7",
        "RateLimit-Reset": "1",
    },
    "off": {},
}  # fmt: skip


@pytest.mark.parametrize("version", HEADER_VERSIONS)
def test_what_each_version_says(version: str) -> None:
    assert said(decided([(0.0, 3)], RATES, HELD), version) == FIELDS[version]


@pytest.mark.parametrize("version", ["draft-07", "draft-06"])
def test_older_versions_know_nothing_of_what_is_held_and_say_the_window_where_nothing_is_gone(version: str) -> None:
    assert said(decided(ONE, HELD), version) == said(Decision(), version) == x_rate_limit([]) == {}
    assert "60" in "".join(said(decided([(0.0, 0)], rule("fixed_window")), version).values())


def test_by_old_custom() -> None:
    found = policies(decided([(0.0, 3)], RATES, HELD).outcomes)
    assert x_rate_limit(found) == {"X-RateLimit-Limit": "4", "X-RateLimit-Remaining": "3"}
    assert x_rate_limit(found[:2]) == {
        "X-RateLimit-Limit": "10",
        "X-RateLimit-Remaining": "7",
        "X-RateLimit-Reset": "1",
    }
    assert x_rate_limit(found[1:2], now=START + 0.25)["X-RateLimit-Reset"] == str(START + 41)
    bucket = policies(decided([(0.0, 5)], rule("gcra")).outcomes)
    assert x_rate_limit(bucket)["X-RateLimit-Reset"] == "30"  # all of it, where RateLimit says when there is more


class TestDelay:
    @pytest.mark.parametrize(
        ("retry_after", "spread", "seconds"),
        [
            (0.0, 0, 1), (0.2, 0, 1), (1.0, 0, 1), (1.000001, 0, 2), (45.5, 0, 46), (NEVER, 0.1, NEVER),
            (30.0, 0.1, 33), (30.0, 0.05, 32), (30.0, 0.1 - 1e-12, 33),
        ],
    )  # fmt: skip
    def test_is_rounded_up(self, retry_after: float | None, spread: float, seconds: int | None) -> None:
        assert delay_seconds(retry_after, spread) == seconds


@given(st.lists(strategies.NAMES, min_size=1, max_size=20, unique=True), st.data())
def test_a_client_reads_back_what_was_said(names: list[str], data: st.DataObject) -> None:
    rules = [Rule(name, f"{data.draw(st.integers(1, 50))}/min") for name in names]
    decision = decided(ONE, *rules)
    found = said(decision)
    listed = http_sf.parse(found["RateLimit-Policy"].encode(), tltype="list")
    left = http_sf.parse(found["RateLimit"].encode(), tltype="list")
    assert len({name for name, _ in listed}) == len(listed) == min(len(names), 16)  # no two alike
    assert [name for name, _ in left] == [name for name, _ in listed]
    by_name = {policy.name: policy for policy in policies(decision.outcomes)}
    for name, parameters in listed:
        assert parameters == {"q": by_name[name].quota, "w": 60}
    for name, parameters in left:
        assert parameters == {"r": by_name[name].remaining, "t": by_name[name].more_after}


def outcome(rule: str = "api", ident: str = "ip:192.0.2.1", **options: Any) -> Outcome:
    given = {"allowed": True, "limit": 10, "remaining": 4, "retry_after": 0.0, "reset_after": 30.0, "window": 60.0}
    return Outcome(rule, ident, **(given | options))


def anybody(ident: str) -> bool:
    return True


NOT_ALLOWED = {"allowed": False, "remaining": 0, "retry_after": 5.0}


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("search and chat (v2)", "search and chat (v2)"), ('say "hi" \\o/', 'say "hi" \\o/'), ("50%", "50%25"),
        ("api#min", "api%23min"), ("Größe", "Gr%C3%B6%C3%9Fe"), ("🐢", "%F0%9F%90%A2"), ("\ud800", "%ED%A0%80"),
        ("a\x00\r\n", "a%00%0D%0A"),
    ],
)  # fmt: skip
def test_a_name_is_printable_ascii(rule: str, name: str) -> None:
    assert policy_names([outcome(rule)]) == [name]


def test_the_rates_of_a_rule_have_names_of_their_own() -> None:
    windows = [1.0, 60.0, 600.0, 86_400.0, 0.25, 31 * 86_400.0]
    found = policy_names([outcome(window=window) for window in windows] + [outcome("other")])
    assert found == ["api#s", "api#min", "api#10m", "api#day", "api#250ms", "api#31d", "other"]


@pytest.mark.parametrize(
    "options",
    [
        {"shadow": True}, {"shadow": True, **NOT_ALLOWED}, {"reason": Reason.BLOCKED, **NOT_ALLOWED},
        {"reason": Reason.NO_ADDRESS, **NOT_ALLOWED}, {"reason": Reason.STORE_FAILED}, {"ident": "user:7"},
    ],
    ids=str,
)  # fmt: skip
def test_not_everything_is_told(options: dict[str, Any]) -> None:
    decision = combine_outcomes((outcome(), outcome("other", **options)))
    assert visible([decision], lambda ident: ident == "ip:192.0.2.1") == (outcome(),) * (not decision.unavailable)


def test_nothing_is_told_of_what_one_process_decided_nor_where_the_store_fails_the_client() -> None:
    here, local = combine_outcomes((outcome(),)), combine_outcomes((outcome("local"),), degraded=True)
    assert visible([here, local], anybody) == (outcome(),)
    failed = combine_outcomes((outcome("strict", reason=Reason.STORE_FAILED, **NOT_ALLOWED),), degraded=True)
    assert visible([here, failed], anybody) == visible([], anybody) == visible([Decision()], anybody) == ()


def test_the_last_word_of_each_rule_and_rate_is_told() -> None:
    first = combine_outcomes((outcome(), outcome(window=1.0)))
    then = combine_outcomes((outcome(remaining=3), outcome("other")))
    assert visible([first, then], anybody) == (outcome(remaining=3), outcome(window=1.0), outcome("other"))


def test_of_very_many_those_nearest_their_limits() -> None:
    found = policies([outcome(str(number), remaining=number, limit=100) for number in range(50, 0, -1)])
    assert [policy.remaining for policy in found] == list(range(1, MAX_POLICIES + 1))


def test_the_tightest_has_least_left_for_longest() -> None:
    found = policies([outcome(), outcome("a", remaining=1, reset_after=9.0), outcome("b", remaining=1)])
    assert tightest(found).name == "b"


def test_a_wait_that_is_over_is_a_second_all_the_same() -> None:
    (policy,) = policies([outcome(reset_after=0.000001, **NOT_ALLOWED).later(0.0)])
    assert policy.more_after == 1
    (policy,) = policies([outcome().later(60.0)])
    assert policy.more_after is None


SEVERAL = (
    *Rule("api", rates=("10/min", "100/h")).parts, Rule("burst", "5/s", algorithm="gcra", burst=20),
    Rule("later", "10/min", enforce_at=1.5), Rule("watched", "10/min", action="shadow"),
    Rule("hers", "10/min", key="user"),
)  # fmt: skip


@pytest.mark.parametrize("left", [0, 1, 9, 10])
@pytest.mark.parametrize("reset", [0, 1, 999_999])
@pytest.mark.parametrize("retry", [0.0, -1.0, 700_000.0])
def test_what_is_prepared_says_the_same(left: int, reset: int, retry: float) -> None:
    idents = ("ip:192.0.2.1",) * 5 + ("user:1",)
    charges = Charges(rule_set(SEVERAL), idents, (1,) * 6)
    answers = Answers((*(retry, float(left), float(reset)) * 2, *(0.0, float(left), float(reset)) * 4), START)
    decision = core_decision.make_decision(Decide(charges), answers)
    assert decision.answered is not None and decision.allowed == (not retry)
    for is_known, prepared in zip((True, False), plain_fields(charges, ()), strict=True):
        assert prepared is not None
        sees = partial(may_see, (), lambda is_known=is_known: is_known)
        said = {"RateLimit-Policy": prepared.policy, "RateLimit": prepared.rate_limit(answers.numbers)}
        assert said == rate_limit(policies(visible([decision], sees)), "draft-11")
    hers = Charges(rule_set(SEVERAL[-1:]), ("user:1",), (1,))
    known, others = plain_fields(hers, ())
    assert known and others is None
