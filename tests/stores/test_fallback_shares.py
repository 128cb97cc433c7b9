"""Every rule has a share that one of many processes can go by while Redis is away."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_throttle.core import Rule
from django_throttle.core.commands import Answers, Charge, rule_set
from django_throttle.stores.fallback import MAX_KNOWN, MOST_WAITING, ProcessCount, Remaining, share_of
from tests.strategies import rules

MONTHLY = Rule("monthly", "1000/month", algorithm="fixed_window")
BERLIN = Rule("berlin", "1000/month", algorithm="fixed_window", timezone="Europe/Berlin")
# At a tenth of the rate one call takes longer than any may wait.
QUEUE = Rule("queue", "100/s", algorithm="leaky_bucket", action="delay", max_delay=0.04, cost=5)


@given(rules(), st.integers(1, 1000))
@example(MONTHLY, 4)
@example(BERLIN, 4)
@example(QUEUE, 10)
@example(QUEUE, 1000)
def test_no_rule_is_without_a_share(rule: Rule, processes: int) -> None:
    for part in rule.parts:
        share = share_of(part, processes)
        assert share.id == part.id
        assert share.plan.limit <= max(part.plan.limit, part.cost)
        assert share.plan.limit >= part.cost


@pytest.mark.parametrize(("processes", "waiting"), [(1, 100), (3, 33), (200, 1)])
def test_all_shares_of_a_queue_let_no_more_wait(processes: int, waiting: int) -> None:
    rule = Rule("reports", "10/min", algorithm="leaky_bucket", action="defer", max_queue=100)
    assert share_of(rule, processes).plan.limit == 1 + waiting, "at least one, and the one that runs"


class TestProcessCount:
    def test_it_is_what_beats_saw_and_at_least_what_is_expected(self) -> None:
        count = ProcessCount(4, lambda: False)
        assert count.sharing == 4, "before anything was seen"
        count.note(6, lost=False)
        assert count.sharing == 6
        count.note(2, lost=False)
        assert (count.sharing, count.seen) == (4, 2)

    def test_it_does_not_fall_for_two_beats_after_a_loss(self) -> None:
        count = ProcessCount(0, lambda: False)
        count.note(8, lost=False)
        seen = []
        for alive, lost in ((1, True), (3, False), (3, False), (5, False), (5, False)):
            count.note(alive, lost=lost)
            seen.append(count.sharing)
        assert seen == [8, 8, 3, 5, 5]

    def test_it_does_not_fall_while_the_store_fails(self) -> None:
        failing = True
        count = ProcessCount(0, lambda: failing)
        for alive in (8, 1, 1, 1, 1):
            count.note(alive, lost=False)
        assert count.sharing == 8
        failing = False
        for _ in range(3):
            count.note(1, lost=False)
        assert count.sharing == 1


class TestRemaining:
    RULES = Rule("a", "100/h", algorithm="gcra"), Rule("b", "100/h", algorithm="gcra")

    @pytest.mark.parametrize("others", [RULES, RULES[::-1]], ids=["the same rules", "other rules too"])
    @pytest.mark.parametrize("left", [(10, 20, 30, 40, 49, 0), (10, 90, 90, 40, 50, 0), (90, 90, 90, 90, 90, 50)])
    def test_of_several_calls_the_budgets_with_little_left_are_known(
        self, left: tuple[int, ...], others: tuple[Rule, ...]
    ) -> None:
        remaining, sets = Remaining(ProcessCount(2, lambda: False)), (self.RULES, self.RULES, others)
        each = [rule_set(rules).charges((f"u{at}",) * 2, 1) for at, rules in enumerate(sets)]
        numbers = [number for units in left for number in (0.0, float(units), 9e9)]
        answers = [Answers(tuple(numbers[at : at + 6]), 0.0) for at in (0, 6, 12)]
        remaining.note_all(each, answers)
        pairs = [(rule, f"u{at}") for at, rules in enumerate(sets) for rule in rules]
        found = [remaining.of(Charge(rule, ident, 1)) for rule, ident in pairs]
        assert [one and one.units for one in found] == [units if units < 50 else None for units in left]

    def test_the_latest_are_kept(self) -> None:
        remaining = Remaining(ProcessCount(1, lambda: False))
        for at in range(2 * MAX_KNOWN):
            remaining.note(rule_set(self.RULES[:1]).charges((f"u{at}",), 1), Answers((0.0, 1.0, 9e9), 0.0))
        known = [remaining.of(Charge(self.RULES[0], f"u{at}", 1)) is not None for at in range(2 * MAX_KNOWN)]
        assert 0.9 * MAX_KNOWN < sum(known) <= MAX_KNOWN and known[-1]

    def test_what_another_thread_notes_meanwhile_is_known_next(self) -> None:
        rules, charge = rule_set(self.RULES[:1]), Charge(self.RULES[0], "u", 1)

        class Interrupted(ProcessCount):
            """Runs ``meanwhile`` as soon as somebody asks for the number of processes."""

            meanwhile: Callable[[], object] | None = None

            @property
            def sharing(self) -> int:
                work, self.meanwhile = self.meanwhile, None
                if work:
                    work()
                return 2

            @sharing.setter
            def sharing(self, number: int) -> None: ...

        processes = Interrupted(2, lambda: False)
        remaining = Remaining(processes)

        def note(units: float) -> None:
            for _ in range(MOST_WAITING):
                remaining.note(rules.charges(("u",), 1), Answers((0.0, units, 9e9), 0.0))

        note(40.0)
        thread = threading.Thread(target=note, args=(30.0,))

        def overtake() -> None:
            thread.start()
            thread.join(0.2)

        processes.meanwhile = overtake
        remaining.of(charge)
        thread.join()
        left = remaining.of(charge)
        assert left is not None and left.units == 30
