"""What a process buys ahead: never more passes than the rule's bound, and nothing is lost but with a process."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_throttle.core import Rule
from django_throttle.core.algorithms.base import NEVER
from django_throttle.core.commands import Answer, Charge, Charges, Correct, Decide, LedgerEntry, Reset
from django_throttle.core.decision import Decision
from django_throttle.core.prepaid import (
    LIMIT_DIVISOR,
    MAX_ORDER_BURST,
    ORDERS_A_SECOND,
    PrepaidBudget,
    PrepaidCall,
    PrepaidOrder,
    PrepaidUnits,
)
from django_throttle.stores import MemoryStore
from tests.bounds import most
from tests.clock import FrozenClock

IDENT = "everyone"
ALGORITHMS = ("fixed_window", "sliding_window", "sliding_log", "gcra", "token_bucket", "leaky_bucket")
HOT = Rule("hot", "1000/min", algorithm="fixed_window", prepaid=True)


class Process:
    """A process with a clock of its own, which asks the store when it is told to."""

    def __init__(self, store: MemoryStore, offset: float) -> None:
        self.store, self.offset = store, offset
        self.budget: PrepaidBudget | None = None
        self.asked: tuple[PrepaidOrder, Decide, tuple[Answer, ...], float] | None = None
        self.back: list[LedgerEntry] = []

    @property
    def now(self) -> float:
        clock: Any = self.store.clock
        return (clock.now_us - clock.start_us) / 1_000_000 + self.offset

    def of(self, hot: Rule) -> PrepaidBudget:
        if self.budget is None or self.budget.rule != hot:
            self.forget(refund=True)
            self.budget = PrepaidBudget(hot, IDENT, self.now)
        return self.budget

    def forget(self, *, refund: bool) -> None:
        if self.budget is not None and refund:
            self.give_back(self.budget.remove_expired())
        self.budget = None

    def give_back(self, purchases: list[PrepaidUnits]) -> None:
        self.back += [one.part(one.unspent) for one in purchases]

    def call(self, hot: Rule, cost: int) -> PrepaidCall:
        """What is held; where that is too little the store is asked, and answers when it is told to."""
        call = PrepaidCall((Charge(hot, IDENT, cost),))
        if lacking := call.take([self.of(hot)], self.now):
            self.ask(PrepaidOrder(call, lacking, self.now))
        return call

    def ask(self, order: PrepaidOrder) -> None:
        command = order.command(self.now)
        self.asked = order, command, self.store.execute(command), self.now

    def hear(self) -> PrepaidCall:
        """The answers arrive; what was too much is asked for again, at once."""
        assert self.asked is not None
        while self.asked[0].shrink(self.asked[2]):
            self.ask(self.asked[0])
        (order, command, answers, sent_at), self.asked = self.asked, None
        bought = order.settle(command, answers, sent_at)
        if order.missing[0].budget is not self.budget:
            self.give_back(bought)
        return order.call

    def acquire(self, hot: Rule, cost: int = 1) -> PrepaidCall:
        call = self.call(hot, cost)
        return self.hear() if self.asked else call

    def spend(self, hot: Rule, cost: int) -> Decision | None:
        """By one purchase that is enough, as most calls; what it says is left is what is known and held."""
        before = self.of(hot).held(self.now)
        if (decision := self.of(hot).spend(cost, self.now)) is not None:
            assert self.of(hot).held(self.now) == before - cost >= 0
            assert decision.allowed
            assert decision.remaining == self.of(hot).answer(self.now).remaining
        return decision

    def sweep(self) -> None:
        if self.budget is not None and (gone := self.budget.remove_expired(self.now)):
            self.budget.note_command(self.now)
            self.give_back(gone)
        if self.back:
            self.store.execute(Correct(tuple(self.back)))
        self.back = []


class Machine(RuleBasedStateMachine):
    """Processes that buy, spend, pause, hear late, give back and die, while a budget is reset and its rule edited."""

    @initialize(
        algorithm=st.sampled_from(ALGORITHMS),
        limit=st.integers(1, 60) | st.integers(100, 3000),
        seconds=st.sampled_from([1, 2, 10, 60]),
        strict=st.booleans(),
        resolution=st.integers(1, 4),
    )
    def begin(self, algorithm: str, limit: int, seconds: int, strict: bool, resolution: int) -> None:
        shape = {"strict": strict, "resolution": resolution} if algorithm == "sliding_window" else {}
        self.hot = Rule("hot", f"{limit}/{seconds}s", algorithm=algorithm, prepaid=True, **shape)
        self.window = seconds * 1_000_000
        self.clock = FrozenClock()
        self.store = MemoryStore(self.clock)
        self.processes = [Process(self.store, 17.3 * n) for n in range(3)]
        self.passed: list[tuple[int, int]] = []
        self.breaks: list[int] = []  # when the budget was reset, or its rule edited
        self.most = self._most()
        self.lost = False

    def _most(self) -> int:
        return most(replace(self.hot, prepaid=False))

    def _count(self, call: PrepaidCall, at: int) -> None:
        """The asker's own call passes when it was charged, like any that is not bought ahead."""
        if call.taken and not call.is_refused:
            self.passed.append((at, call.charges[0].cost))

    @rule(caller=st.integers(0, 2), cost=st.integers(1, 3), times=st.integers(1, 300))
    def calls(self, caller: int, cost: int, times: int) -> None:
        process = self.processes[caller]
        for _ in range(times):
            if process.asked is None:
                self._count(process.acquire(self.hot, cost), self.clock.now_us)

    @rule(caller=st.integers(0, 2), cost=st.integers(1, 3), times=st.integers(1, 30))
    def spends(self, caller: int, cost: int, times: int) -> None:
        for _ in range(times):
            if self.processes[caller].spend(self.hot, cost) is not None:
                self.passed.append((self.clock.now_us, cost))

    @rule(caller=st.integers(0, 2), cost=st.integers(1, 3))
    def asks(self, caller: int, cost: int) -> None:
        process = self.processes[caller]
        if process.asked is None:
            self._count(process.call(self.hot, cost), self.clock.now_us)

    @rule(caller=st.integers(0, 2))
    def hears(self, caller: int) -> None:
        process = self.processes[caller]
        if process.asked is not None:
            sent_at = round((process.asked[3] - process.offset) * 1_000_000) + self.clock.start_us
            self._count(process.hear(), sent_at)

    @rule(seconds=st.floats(0, 0.3) | st.floats(0, 70))
    def time_passes(self, seconds: float) -> None:
        self.clock.step(seconds)

    @rule(caller=st.integers(0, 2))
    def sweeps(self, caller: int) -> None:
        self.processes[caller].sweep()

    @rule(caller=st.integers(0, 2))
    def dies(self, caller: int) -> None:
        self.processes[caller] = Process(self.store, 5.1)
        self.lost = True

    @rule(heard=st.lists(st.integers(0, 2), unique=True))
    def is_reset(self, heard: list[int]) -> None:
        """Some processes hear of it at once; the others spend, or give back, what they have bought before."""
        self.store.execute(Reset((Charge(self.hot, IDENT, 0),)))
        for caller in heard:
            self.processes[caller].forget(refund=False)
        self.breaks.append(self.clock.now_us)

    @precondition(lambda machine: machine.hot.limit is not None and machine.hot.limit > 3)
    @rule(limit=st.integers(4, 3000))
    def is_edited(self, limit: int) -> None:
        assert self.hot.rate is not None
        self.hot = self.hot.with_rates((replace(self.hot.rate, limit=limit),), None)
        self.most = max(self.most, self._most())
        self.breaks.append(self.clock.now_us)

    @invariant()
    def no_window_has_more(self) -> None:
        if not getattr(self, "passed", None):
            return
        since = self.clock.now_us - self.window
        used = sum(cost for at, cost in self.passed if at > since)
        # Each reset, and each edit, may admit once more what the bound says; D of a purchase before it included.
        times = 1 + sum(1 for at in self.breaks if at > since - 400_000)
        assert used <= self.most * times

    def teardown(self) -> None:
        if not getattr(self, "passed", None) or self.lost or self.breaks or self.hot.algorithm != "sliding_log":
            return
        for process in self.processes:
            if process.asked is not None:
                self._count(process.hear(), self.clock.now_us)
            process.forget(refund=True)
            process.sweep()
        since = self.clock.now_us - self.hot.params.window  # type: ignore[attr-defined]
        (answer,) = self.store.execute(Decide(Charges.of((Charge(self.hot, IDENT, 0),)), commit=False))
        assert self.hot.params.limit - answer.remaining <= sum(cost for at, cost in self.passed if at > since - 400_000)


@pytest.mark.row("B11")
def test_whatever_happens_the_bound_holds() -> None:
    run_state_machine_as_test(Machine, settings=settings(stateful_step_count=30))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(FrozenClock())


@pytest.fixture
def process(store: MemoryStore) -> Process:
    return Process(store, 100.0)


def used(store: MemoryStore, hot: Rule = HOT) -> int:
    (answer,) = store.execute(Decide(Charges.of((Charge(hot, IDENT, 0),)), commit=False))
    return hot.params.limit - answer.remaining


def demand(process: Process, seconds: float, rate: int, hot: Rule = HOT) -> int:
    clock: Any = process.store.clock
    passed = 0
    for _ in range(round(seconds * rate)):
        clock.step(1 / rate)
        passed += not process.acquire(hot).is_refused
    return passed


def test_what_is_bought_follows_demand(process: Process, store: MemoryStore) -> None:
    hot = Rule("hot", "1000000/h", algorithm="fixed_window", prepaid=True)
    process.acquire(hot)
    assert used(store, hot) == 1, "nothing is known of demand"
    demand(process, 2, 1000, hot)
    assert 2001 < used(store, hot) <= 2001 + 200, "a fifth of a second's more"
    clock: Any = store.clock
    clock.step(5)
    process.sweep()
    assert used(store, hot) == 2001
    process.acquire(hot)
    assert used(store, hot) == 2002, "and demand has ended"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("limit", [1, 10])
def test_small_limits_are_exact(store: MemoryStore, algorithm: str, limit: int) -> None:
    hot = Rule("hot", f"{limit}/h", algorithm=algorithm, prepaid=True)
    processes = [Process(store, n) for n in range(3)]
    passed = sum(not one.acquire(hot).is_refused for one in processes for _ in range(limit + 1))
    passed += sum(not one.acquire(hot).is_refused for one in processes)
    assert passed == limit == used(store, hot)


def test_a_process_holds_no_more_than_its_share_of_the_limit(process: Process, store: MemoryStore) -> None:
    passed = demand(process, 0.01, 50_000)
    assert used(store) - passed <= HOT.params.limit // LIMIT_DIVISOR


def test_a_purchase_leaves_others_a_quarter_of_what_is_left(process: Process, store: MemoryStore) -> None:
    Process(store, 0).acquire(HOT, 900)
    process.acquire(HOT, 20)
    demand(process, 0.001, 1000)
    assert used(store) == 920 + 60


def test_who_may_not_ask_yet_is_refused_until_then(process: Process, store: MemoryStore) -> None:
    hot = Rule("hot", "1000/s", algorithm="gcra", prepaid=True)
    Process(store, 0).acquire(hot, hot.params.limit)
    asked = 0
    clock: Any = store.clock
    for _ in range(5000):
        clock.step(0.001)
        call = process.call(hot, 1)
        asked += process.asked is not None
        if process.asked:
            process.hear()
        elif call.is_refused:
            assert 0 < call.refused[0].retry <= 500_000
    assert asked <= MAX_ORDER_BURST + 5 * ORDERS_A_SECOND


def test_a_refusal_is_repeated_for_a_second_at_most(process: Process, store: MemoryStore) -> None:
    Process(store, 0).acquire(HOT, 1000)
    clock: Any = store.clock
    refused = process.acquire(HOT)
    assert refused.is_refused
    clock.step(0.5)
    again = process.call(HOT, 1)
    assert process.asked is None and again.refused[0].retry == refused.refused[0].retry - 500_000
    clock.step(0.5)
    process.call(HOT, 1)
    assert process.asked is not None


def test_what_never_fits_refuses_nothing_smaller(process: Process, store: MemoryStore) -> None:
    assert process.acquire(HOT, 1001).refused[0].retry == NEVER
    assert not process.acquire(HOT, 1000).is_refused


def test_who_has_asked_too_often_waits_for_no_store_that_fails(process: Process, store: MemoryStore) -> None:
    process.acquire(HOT, 999)
    for _ in range(2 * MAX_ORDER_BURST):
        process.acquire(HOT)
    budget = process.of(HOT)
    assert budget.refusal(1, process.now) is not None
    budget.note_failure(process.now)
    assert budget.refusal(1, process.now) is None and budget.pause(process.now) == 0.0
