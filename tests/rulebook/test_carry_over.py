"""What was already used still counts over an edit: never more than one extra limit, and nobody is refreshed by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import inf
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_throttle.core import Rule
from django_throttle.core.commands import Charge, Decide
from django_throttle.core.edits import COUNTS_ON, STARTS_AFRESH, counts_in_words, takeovers
from django_throttle.core.prepaid import Claim
from django_throttle.exceptions import Cause, StoreError
from django_throttle.limiter import Limiter
from django_throttle.prepaid import decide_bought
from django_throttle.rulebook import carry_over
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.base import run
from tests.bounds import most
from tests.clock import FrozenClock
from tests.rulebook.test_rule_edits import Process, environment, start

__all__ = ["environment", "start"]  # fixtures
IDENT = "user:1"


def rule(rate: str, algorithm: str = "fixed_window", **options: Any) -> Rule:
    return Rule("api", rate, key="user", algorithm=algorithm, **options)


def ring(*rules: Rule) -> list[tuple[Rule, Rule]]:
    """Each rule to the next, and back; of one window and algorithm is one count, which no edit moves."""
    return [(old, new) for old, new in zip(rules, (*rules[1:], rules[0]), strict=True) if old.id != new.id]


RING = [
    *ring(
        *(rule("10/min"), rule("4/10s"), rule("30/h"), rule("10/min", "sliding_window")),
        *(rule("6/30s", "sliding_window", resolution=3), rule("6/30s", "sliding_window", strict=True)),
        *(rule("8/min", "sliding_log"), rule("12/day", timezone="UTC")),
    ),
    *ring(
        *(rule("10/min", "gcra"), rule("2/min", "gcra", burst=10), rule("30/min", "token_bucket", burst=5)),
        *(rule("6/30s", "leaky_bucket"), rule("7/min", "token_bucket", refill="interval")),
    ),
]


@pytest.fixture(autouse=True)
def no_edits(monkeypatch: pytest.MonkeyPatch, clock: FrozenClock) -> Iterator[None]:
    monkeypatch.setattr(carry_over, "monotonic", clock)
    carry_over.forget()
    yield
    carry_over.forget()


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, clock: FrozenClock) -> Any:
    if request.param == "memory":
        return MemoryStore(clock)
    return RedisStore(request.getfixturevalue("redis_url"), clock=clock, deadline=5.0)


def edit(old: Rule, new: Rule) -> None:
    """This process has the new rule in force."""
    carry_over.note({old.name: old}.get, [new])


def spend(store: Any, under: Rule, tries: int = 100, ident: str = IDENT) -> int:
    """How many calls of so many pass."""
    one = Limiter([under], store)
    return sum(one.acquire(ident).allowed for _ in range(tries))


@pytest.mark.parametrize(("old", "new"), RING)
def test_who_has_used_all_is_not_refreshed(store: Any, old: Rule, new: Rule) -> None:
    used = spend(store, old)
    edit(old, new)
    assert spend(store, new) == max(0, new.plan.limit - used)
    assert spend(store, new, ident="user:2") == new.plan.limit


# Of one limit each, so that what is too much shows.
GROUPS = (
    [
        *(rule("6/min", "sliding_log"), rule("6/20s", "sliding_log"), rule("6/h", "sliding_log")),
        rule("6/30s", "sliding_window", strict=True),
        rule("6/min", "sliding_window", strict=True, resolution=4),
    ],
    [
        *(rule("6/min"), rule("6/30s"), rule("6/h"), rule("6/day", timezone="UTC"), rule("6/min", "sliding_log")),
        *(rule("6/min", "sliding_window"), rule("6/40s", "sliding_window", resolution=3)),
    ],
    [
        *(rule("6/min", "gcra"), rule("2/min", "gcra", burst=6), rule("6/30s", "leaky_bucket")),
        *(rule("30/min", "token_bucket", burst=6), rule("6/min", "token_bucket", refill="interval")),
    ],
)
# Each time: how long nobody calls, by how much the clock goes back, which rule holds then, which process is begun again
# and which is called, how often.
WAITS, STEPS = st.just(0.0) | st.floats(0, 45), st.sampled_from([0.0] * 7 + [1.0, 50.0])
PROCESSES, CALLS = st.integers(0, 1), st.sampled_from([0, 1, 3, 20, 20])
TURN = st.tuples(WAITS, STEPS, st.integers(0, 6), st.none() | PROCESSES, PROCESSES, CALLS)


class Site:
    """Two processes with the same rule, which is edited; ``admitted`` is when each call passed, by a steady clock."""

    def __init__(self, store: Any, clock: FrozenClock, first: Rule, ident: str) -> None:
        self.store, self.clock, self.ident = store, clock, ident
        self.steady = FrozenClock()
        self.rules, self.steps = [(self.steady(), first)], list[float]()
        self.edits: list[dict[str, Any]] = [{}, {}]
        self.admitted: list[float] = []

    def go_on(self, seconds: float, back: float) -> None:
        self.steady.tick(seconds)
        self.clock.tick(seconds - back)
        if back:
            self.steps.append(self.steady())

    def call(self, process: int, times: int) -> None:
        carry_over.edits = self.edits[process]
        self.admitted += [self.steady()] * spend(self.store, self.rules[-1][1], times, self.ident)

    def edit(self, new: Rule) -> None:
        old = self.rules[-1][1]
        self.rules.append((self.steady(), new))
        for process in (0, 1):
            carry_over.edits = self.edits[process]
            edit(old, new)
            self.edits[process] = carry_over.edits

    def begin(self, process: int) -> None:
        now = self.steady()
        pairs = zip(self.rules, self.rules[1:], strict=False)
        carry_over.forget()
        carry_over.recall([(now - at, old, new) for (_, old), (at, new) in pairs])
        self.edits[process] = carry_over.edits

    def check(self) -> None:
        """In every span no longer than any window: what a rule in force admits, and one limit where it was edited.

        One more for each step back of the clock, after which windows that had ended may begin again.
        """
        span = min(rule.window or 0 for _, rule in self.rules)
        ends = [at for at, _ in self.rules[1:]] + [inf]
        for last, now in enumerate(self.admitted):
            since = now - span
            passed = sum(at > since for at in self.admitted[: last + 1])
            held = [rule for (at, rule), end in zip(self.rules, ends, strict=True) if at <= now and end > since]
            extra = (len(held) > 1) + sum(since < at <= now for at in self.steps)
            assert passed <= max(most(r, round(span * 1e6)) for r in held) + extra * max(r.plan.limit for r in held)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(group=st.sampled_from(GROUPS), turns=st.lists(TURN, min_size=2, max_size=12))
def test_in_every_window_edits_admit_no_more_than_one_extra_limit(
    monkeypatch: pytest.MonkeyPatch, store: Any, clock: FrozenClock, group: list[Rule], turns: Any
) -> None:
    """Whatever is called, edited and restarted, and however the store's clock goes back."""
    site = Site(store, clock, group[0], f"user:{uuid4()}")
    monkeypatch.setattr(carry_over, "monotonic", site.steady)
    carry_over.forget()
    for wait, back, number, begun, called, calls in turns:
        site.go_on(wait, back)
        if (new := group[number % len(group)]) is not site.rules[-1][1]:
            site.edit(new)
        if begun is not None:
            site.begin(begun)
        site.call(called, calls)
    site.check()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        *((rule("10/min"), new, COUNTS_ON) for new in (rule("20/min"), rule("10/h"), rule("10/min", "sliding_log"))),
        (rule("10/min", "gcra"), rule("10/h", "token_bucket"), COUNTS_ON),
        *((rule("10/min"), new, "") for new in (rule("10/min"), rule("10/min", scopes=("other",)))),
        *((rule("10/min"), new, STARTS_AFRESH) for new in (rule("10/min", "gcra"), rule("10/min", unit="bytes"))),
        (rule("10/min"), Rule("api", "10/min", key="ip", algorithm="fixed_window"), STARTS_AFRESH),
        (rule("10/min", "leaky_bucket"), rule("10/h", "leaky_bucket", action="delay"), STARTS_AFRESH),
    ],
)
def test_the_form_says_what_becomes_of_what_was_used(old: Rule, new: Rule, said: str) -> None:
    assert counts_in_words(old, new) == said
    assert bool(takeovers(old, new)) <= (said == COUNTS_ON)


@pytest.mark.parametrize("prepaid", [False, True])
def test_what_a_process_buys_ahead_is_no_more(redis_url: str, clock: FrozenClock, prepaid: bool) -> None:
    store = RedisStore(redis_url, clock=clock, deadline=5.0)
    old, new = rule("10/min"), rule("12/h", prepaid=prepaid)
    assert spend(store, old) == 10
    edit(old, new)
    charge = Charge(new, IDENT, 1)
    passed = [run(decide_bought(Claim((charge,)), store), store).allowed for _ in range(9)]
    assert sum(passed) == 2


def test_a_store_that_fails_meanwhile_decides_by_the_policy(clock: FrozenClock) -> None:
    class Failing(MemoryStore):
        def execute(self, command: Any) -> Any:
            if isinstance(command, Decide):
                raise StoreError(Cause.UNAVAILABLE, "away")
            return super().execute(command)

    old, new = rule("10/min"), rule("12/h", on_store_failure="allow")
    edit(old, new)
    decision = Limiter([new], Failing(clock)).acquire(IDENT)
    assert decision.allowed
    assert decision.degraded
    assert carry_over.due([Charge(new, IDENT, 1)])


# Says, for each line that it is given, how many of three calls pass.
CALLING = """
import sys, time, django
django.setup()
from django_throttle import limiter
from django_throttle.call_facts import Facts
from django_throttle.models import ThrottleRule
from tests.callers import Caller
for line in sys.stdin:
    name, value = line.split()
    if name == "rate":
        ThrottleRule.objects.update_or_create(name="api", defaults={"rate": value, "key": "user"})
        print("saved", flush=True)
        continue
    facts = Facts("page", ("request",), Caller(user=value))
    print(sum(limiter.decide(facts).allowed for _ in range(3)), flush=True)
"""


@pytest.mark.parametrize("is_deployment", [False, True], ids=["a row", "settings"])
def test_a_process_that_starts_after_the_edit_knows_the_former_rule(
    start: Callable[..., Process], is_deployment: bool
) -> None:
    def asked(process: Process, line: str) -> str:
        process.say(line)
        return process.hear()

    def passed(rate: str, ident: str) -> str:
        own = {"DJANGO_SETTINGS_MODULE": "tests.editing", "RULES": json.dumps({"api": {"rate": rate, "key": "user"}})}
        if not is_deployment:
            assert asked(editor, f"rate {rate}") == "saved"
        return asked(start(CALLING, **(own if is_deployment else {})), f"calls {ident}")

    editor = start(CALLING)
    assert [passed("3/h", "user:1"), passed("3/d", "user:1"), passed("3/d", "user:2")] == ["3", "0", "3"]
