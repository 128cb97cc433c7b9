"""The breaker opens when it should, asks one at a time, and closes again."""

from __future__ import annotations

import threading

import pytest

from django_throttle.stores.breaker import LONGEST_PAUSE, Breaker


class Seconds:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def breaker(seconds: Seconds) -> Breaker:
    return Breaker(clock=seconds, chance=lambda: 0.0)  # pauses of full length


def fail(breaker: Breaker, times: int) -> list[bool]:
    found = []
    for _ in range(times):
        assert breaker.admit() == 0.0
        found.append(breaker.failed())
    return found


def test_closed_it_admits_everything(breaker: Breaker) -> None:
    for _ in range(100):
        assert breaker.admit() == 0.0
        breaker.succeeded()
    assert not breaker.is_open


def test_the_success_that_closes_it_says_how_long_it_was_open(breaker: Breaker, seconds: Seconds) -> None:
    assert breaker.succeeded() == 0.0
    fail(breaker, 5)
    seconds.now += 30.0
    assert breaker.admit() == 0.0
    assert (breaker.succeeded(), breaker.succeeded()) == (30.0, 0.0)


def test_five_failures_in_a_row_open_it_and_are_told_once(breaker: Breaker) -> None:
    assert fail(breaker, 5) == [False, False, False, False, True]
    assert breaker.is_open and breaker.admit() == 1.0


def test_a_success_begins_the_row_again(breaker: Breaker) -> None:
    for _ in range(4):
        fail(breaker, 4)
        breaker.admit()
        breaker.succeeded()
    assert not breaker.is_open


def test_half_of_twenty_calls_in_ten_seconds_open_it(breaker: Breaker) -> None:
    for number in range(20):
        breaker.admit()
        if number % 2 == 0:
            breaker.failed()
        else:
            breaker.succeeded()
    assert not breaker.is_open, "ten of twenty, but the last one was good"
    fail(breaker, 1)
    assert breaker.is_open


def test_failures_that_are_ten_seconds_old_do_not_count(breaker: Breaker, seconds: Seconds) -> None:
    for number in range(60):
        breaker.admit()
        if number % 2 == 0:
            breaker.failed()
        else:
            breaker.succeeded()
        seconds.now += 1
    assert not breaker.is_open


@pytest.mark.row("F07")
def test_one_probe_at_a_time(breaker: Breaker, seconds: Seconds) -> None:
    fail(breaker, 5)
    seconds.now += 1.0
    assert breaker.admit() == 0.0
    assert all(breaker.admit() > 0 for _ in range(10)), "the probe is still out"
    breaker.succeeded()
    assert breaker.admit() == 0.0 and not breaker.is_open


@pytest.mark.row("F51")
def test_one_probe_of_many_threads(breaker: Breaker, seconds: Seconds) -> None:
    fail(breaker, 5)
    seconds.now += 1.0
    gate, admitted = threading.Barrier(16), []

    def ask() -> None:
        gate.wait()
        admitted.append(breaker.admit() == 0.0)

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 1


def test_pauses_double_up_to_ten_seconds_and_begin_again_after_a_success(breaker: Breaker, seconds: Seconds) -> None:
    fail(breaker, 5)
    pauses = []
    for _ in range(6):
        pauses.append(wait := breaker.admit())
        seconds.now += wait
        fail(breaker, 1)
    assert pauses == [1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE, LONGEST_PAUSE]
    seconds.now += LONGEST_PAUSE
    assert breaker.admit() == 0.0
    breaker.succeeded()
    fail(breaker, 5)
    assert breaker.admit() == 1.0


def test_pauses_are_shortened_at_random_by_half_at_most(seconds: Seconds) -> None:
    breaker = Breaker(clock=seconds, chance=lambda: 1.0)
    fail(breaker, 5)
    assert breaker.admit() == 0.5


def test_an_abandoned_probe_lets_the_next_one_go(breaker: Breaker, seconds: Seconds) -> None:
    """A cancelled task or a full pool says nothing about the store."""
    fail(breaker, 5)
    seconds.now += 1.0
    assert breaker.admit() == 0.0
    breaker.abandoned()
    assert breaker.is_open and breaker.admit() == 0.0


def test_a_straggler_that_fails_late_does_not_lengthen_the_pause_for_ever(breaker: Breaker, seconds: Seconds) -> None:
    """Twenty calls are out when Redis hangs: all fail, five open the breaker, the rest come after that."""
    for _ in range(20):
        assert breaker.admit() == 0.0
    for _ in range(20):
        breaker.failed()
    assert breaker.admit() <= 1.0


def test_a_straggler_that_succeeds_late_closes_it(breaker: Breaker) -> None:
    breaker.admit()
    fail(breaker, 5)
    breaker.succeeded()
    assert not breaker.is_open


def test_where_a_replica_takes_over_it_asks_often_at_first(seconds: Seconds) -> None:
    breaker = Breaker(clock=seconds, chance=lambda: 0.0, fails_over=True)
    fail(breaker, 5)
    pauses = []
    for _ in range(27):
        pauses.append(breaker.admit())
        seconds.now += pauses[-1]
        fail(breaker, 1)
    assert pauses == [0.25] * 20 + [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_calls_that_waited_together_are_one_failure(breaker: Breaker, seconds: Seconds) -> None:
    """Twenty threads of a process that stood still for longer than the deadline."""
    for _ in range(20):
        breaker.admit()
    seconds.now += 0.3
    assert not any(breaker.failed(0.1) for _ in range(20))
    assert not breaker.is_open
    for _ in range(4):
        breaker.admit()
        seconds.now += 0.1
        opened = breaker.failed(0.1)
    assert opened, "each of these began after the one before had failed"
