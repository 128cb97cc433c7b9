"""Nobody gets more than is stated of each algorithm, somebody gets all of it, and the documentation says so."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore
from tests.clock import FrozenClock
from tests.published import PRINTED, ROWS, Row, climb, measured_share, table, worst


@pytest.mark.row("A32")
@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.row("B01", "B02", "B03", "B04")
def test_an_attacker_gets_what_is_stated_and_no_more_and_who_never_stops_asking_the_share(row: Row) -> None:
    assert 0.99 * row.at_most <= climb(row.rule, row.span) <= row.at_most
    assert row.share <= measured_share(row.rule) <= min(1, row.share + 0.01)


def test_the_documentation_prints_this(record_property: Callable[[str, object], None]) -> None:
    current = table()
    record_property("bounds", current)
    assert PRINTED.read_text(encoding="utf-8") == current, "write it anew with: python -m tests.published"


@given(
    st.sampled_from(["7/min", "60/min", "3/100ms", "1001/3ms", "9973/s"]),
    st.integers(1, 30),
    st.none() | st.integers(0, 3) | st.floats(0, 0.1),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3) | st.integers(0, 200_000)), max_size=20),
)
@pytest.mark.row("B05")
def test_a_queue_lets_go_the_limit_in_any_window(
    rate: str, burst: int, max_delay: float | None, cost: int, history: list[tuple[int, int]]
) -> None:
    """In the order of arrival, the first at once, none after longer than max_delay, and the last one whole."""
    clock = FrozenClock()
    options = {"burst": burst, "max_delay": max_delay}
    rule = Rule("queue", rate, algorithm="leaky_bucket", action="delay", **options)  # type: ignore[arg-type]
    limiter = Limiter([rule], MemoryStore(clock))
    gone: list[tuple[int, int]] = []
    for calls, pause in history:
        for _ in range(calls):
            decision = limiter.acquire("user:1", cost)
            if decision.allowed:
                assert max_delay is None or decision.delay <= round(max_delay, 6)
                gone.append((clock.now_us + round(decision.delay * 1_000_000), cost))
        clock.now_us += pause
    assert gone == sorted(gone)
    assert not gone or gone[0][0] == clock.start_us
    assert worst(gone, rule.rate.window_us) <= rule.rate.limit + cost - 1
