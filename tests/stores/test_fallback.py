"""While Redis is away a process goes by its share of what is left; what it admits is charged afterwards."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Rule
from django_throttle.core.algorithms import Backfill
from django_throttle.core.commands import Charge, Charges, Decide, DecideLocally, charges_of
from django_throttle.core.decide import correct
from django_throttle.core.io import run
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore, fallback
from django_throttle.stores.base import BlockingIo
from django_throttle.stores.fallback import (
    AdmittedState,
    AdmittedStates,
    BackfillCharge,
    PendingBackfill,
    ProcessCount,
    share_of,
)
from tests.clock import FrozenClock
from tests.inside import counters
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.strategies import rate_rules, rates, rules

API = Rule("api", "10/hour")
ALGORITHMS = ("fixed_window", "sliding_log", "sliding_window", "token_bucket", "leaky_bucket", "gcra")
LIMITS = st.integers(1, 9) | st.integers(1, 3000)
RATES = rate_rules("rule", rates(LIMITS), {}, LIMITS)
JUMPS = st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0, 2.0])
EVENTS = st.tuples(st.sampled_from(["acquire", "acquire", "late"]), st.integers(0, 5), JUMPS, st.floats(0, 2))


def passed(limiter: Limiter, ident: str, times: int) -> list[bool]:
    decisions = [limiter.acquire(ident) for _ in range(times)]
    return [decision.degraded for decision in decisions if decision.allowed]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("processes", "used", "alone"), [(1, 7, 3), (2, 7, 3), (2, 3, 5), (1, 10, 0)])
def test_it_starts_from_what_the_store_said_was_left(
    proxy: Proxy, algorithm: str, processes: int, used: int, alone: int
) -> None:
    store = RedisStore(proxy.url, deadline=5.0, processes=processes)
    rule = Rule("api", "10/hour", algorithm=algorithm)
    limiter = Limiter([rule], store)
    assert passed(limiter, "user:1", used) == [False] * used
    proxy.set("refuse")
    assert passed(limiter, "user:1", 12) == [True] * alone
    assert store.fallback.has_unreported(charges_of(rule, "user:1", 1)) == bool(alone), (
        "what was refused is not charged"
    )
    assert len(passed(limiter, "user:2", 12)) == 10 // processes, "of whom nothing was said"


@pytest.mark.parametrize(
    ("processes", "used", "queue_slots"), [(1, 4, [4, 5, 6, 7, 8]), (2, 4, [4, 6, 8]), (1, 1, [1, 2, 3, 4, 5, 6, 7])]
)
def test_a_queue_goes_on_after_the_turns_that_the_store_has_given(
    proxy: Proxy, redis_url: str, processes: int, used: int, queue_slots: list[int]
) -> None:
    rule = Rule("reports", "60/hour", algorithm="leaky_bucket", action="defer", max_queue=8)
    store = RedisStore(proxy.url, deadline=5.0, processes=processes)
    limiter = Limiter([rule], store)
    assert passed(limiter, "user:1", used) == [False] * used
    proxy.set("refuse")
    decisions = [limiter.acquire("user:1") for _ in range(7)]
    allowed = [decision for decision in decisions if decision.allowed]
    assert [round(decision.outcomes[0].deferred_for / 60) for decision in allowed] == queue_slots
    assert run(correct(BlockingIo(store), allowed[-1].ledger.refund()))
    assert round(limiter.acquire("user:1").outcomes[0].deferred_for / 60) == queue_slots[-1], (
        "the last turn was given back"
    )
    proxy.set("pass")
    Reconciler(store).resend()
    remaining = Limiter([rule], RedisStore(redis_url, deadline=5.0)).peek("user:1").remaining
    assert remaining < 9 - used - len(queue_slots) + 1


def test_what_it_admitted_is_charged_once_though_nobody_asks_again(proxy: Proxy, redis_url: str) -> None:
    store = RedisStore(proxy.url, deadline=5.0)
    limiter, idents = Limiter([API], store), [f"user:{number}" for number in range(250)]
    proxy.set("refuse")
    assert all(passed(limiter, ident, 2) == [True, True] for ident in idents)
    proxy.set("pass")
    elsewhere = Limiter([API], RedisStore(redis_url, deadline=5.0))
    for _ in range(2):
        Reconciler(store).resend()
        assert {elsewhere.peek(ident).remaining for ident in idents} == {8}
    now = round(store.fallback.local.clock() * 1_000_000)
    call = store.fallback.call(PendingBackfill("user:new", "name", (BackfillCharge(API, 3, now),)))
    assert [store.send([call]) for _ in range(3)] == [[1], [0], [0]], "though it is sent again"
    assert elsewhere.peek("user:new").remaining == 7


async def test_it_is_charged_in_the_round_trip_of_the_next_decision(proxy: Proxy) -> None:
    store = RedisStore(proxy.url, deadline=1.0)
    limiter = Limiter([API], store)
    await limiter.aacquire("user:1")
    store.execute(DecideLocally(Decide(charges_of(API, "user:1", 3))))
    proxy.set("delay", 0.6)
    decision = await limiter.aacquire("user:1")
    assert (decision.degraded, decision.remaining) == (False, 5)


@pytest.fixture(scope="module")
def ticking() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(scope="module")
def redis_store(redis_server: RedisServer, ticking: FrozenClock) -> RedisStore:
    store = RedisStore(redis_server.url, clock=ticking, prefix="late", deadline=5.0)
    store.fallback.local.clock = ticking
    return store


def charge_late(memory: MemoryStore, rule: Rule, cost: int, at: int) -> None:
    """The reference, on the memory store's own state."""
    now = round(memory.clock() * 1_000_000)
    state, expires = counters(memory).get((rule.id, "user:1"), (None, 0))
    stored = memory.calendar.params_at(rule, now).charge_late(state if expires > now else None, now, Backfill(cost, at))
    if stored is not None:
        memory._write((rule.id, "user:1"), stored.state, now + stored.lifetime_us)


@given(RATES, st.lists(EVENTS, min_size=1, max_size=20))
def test_reference_and_script_charge_late_alike(
    redis_server: RedisServer,
    redis_store: RedisStore,
    ticking: FrozenClock,
    rule: Rule,
    history: list[tuple[str, int, float, float]],
) -> None:
    with redis_server.client() as client:
        client.flushall()
    ticking.to(0)
    memory, window = MemoryStore(clock=ticking), rule.window or 1
    for number, (kind, cost, jump, age) in enumerate(history):
        ticking.step(jump * window)
        if kind == "late" and cost:
            at = round((ticking() - age * window) * 1_000_000)
            charge_late(memory, rule, cost, at)
            late = PendingBackfill("user:1", str(number), (BackfillCharge(rule, cost, at),))
            assert isinstance(redis_store.send([redis_store.fallback.call(late)])[0], int)
        command = Decide(Charges.of((Charge(rule, "user:1", cost),)))
        assert redis_store.execute(command) == memory.execute(command)


# At a tenth of the rate one call takes longer than any may wait.
QUEUE = Rule("queue", "100/s", algorithm="leaky_bucket", action="delay", max_delay=0.04, cost=5)


@given(rules(), st.integers(1, 1000))
@example(Rule("monthly", "1000/month", algorithm="fixed_window", timezone="Europe/Berlin"), 4)
@example(QUEUE, 10)
@example(QUEUE, 1000)
def test_no_rule_is_without_a_share(rule: Rule, processes: int) -> None:
    for part in rule.parts:
        share = share_of(part, processes)
        assert share.id == part.id
        assert part.cost <= share.params.limit <= max(part.params.limit, part.cost)


@pytest.mark.parametrize(
    ("expected", "beats", "divisor"),
    [
        (4, [(6, "")], [4, 6]),
        (4, [(6, ""), (2, "")], [4, 6, 4]),
        (0, [(8, ""), (1, "lost"), (3, ""), (3, ""), (5, ""), (5, "")], [1, 8, 8, 8, 3, 5, 5]),
        (0, [(8, ""), (1, "failing"), (1, "failing"), (1, "failing"), (1, ""), (1, ""), (1, "")], [1, *[8] * 5, 1, 1]),
    ],
    ids=["as beats saw", "as is expected", "not fewer for two beats after a loss", "not fewer while the store fails"],
)
def test_so_many_processes_share(expected: int, beats: list[tuple[int, str]], divisor: list[int]) -> None:
    states = [""]
    count = ProcessCount(expected, lambda: states[-1] == "failing")
    seen = [count.divisor]
    for alive, state in beats:
        states.append(state)
        count.note(alive, lost=state == "lost")
        seen.append(count.divisor)
    assert seen == divisor


@pytest.mark.row("A20")
def test_of_too_many_idents_that_owe_the_oldest_are_forgotten() -> None:
    owing = AdmittedStates(max_idents=100)
    for number in range(101):
        owing.put(f"user:{number}", [AdmittedState(API, API.params, (number,), 5)])
    assert owing.of("user:0") == [] and owing.of("user:100") == [AdmittedState(API, API.params, (100,), 5)]
    assert 80 <= len(owing) <= 100


@pytest.mark.row("A20")
def test_of_too_many_idents_with_little_left_the_oldest_are_forgotten(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "MAX_NOTED_BUDGETS", 5)
    store = RedisStore(proxy.url, deadline=5.0)
    limiter = Limiter([API], store)
    for number in range(6):
        limiter.acquire(f"user:{number}", 9)
    remaining = [store.answer_observer.of(Charge(API, f"user:{number}", 1)) for number in range(6)]
    assert [last is None for last in remaining] == [True] + [False] * 5
