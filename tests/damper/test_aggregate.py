"""The aggregator: the same cases and the same random histories in this process and in Redis."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_throttle.core import Rule
from django_throttle.local.damper_aggregate import (
    FIRST_SWEEP_SIZE,
    KEPT_SUB_INTERVALS,
    SUB_INTERVAL_SECONDS,
    SUB_INTERVAL_US,
    ZERO_COUNTS,
    Aggregates,
    Count,
    DamperReport,
    MeterCount,
    Reply,
)
from django_throttle.stores import RedisStore
from tests.clock import START, FrozenClock
from tests.conftest import immortal_keys
from tests.servers import RedisServer

RULE = Rule("account", "1000/s", algorithm="damper")
NOW = START * 1_000_000
INDEX = NOW // SUB_INTERVAL_US  # of the sub-interval that begins at the start


class InRedis:
    """The aggregator in Redis, by the test's clock, with the reset that Limiter.reset makes."""

    def __init__(self, url: str, clock: FrozenClock) -> None:
        self.store = RedisStore(url, clock=clock, deadline=5.0)

    def damp(self, reports: list[DamperReport]) -> list[Any]:
        return self.store.aggregator.damp(reports)

    def reset(self, rule_id: str, ident: str) -> int:
        return int(self.store.call("reset_damper", (self.store.key(rule_id, ident),), (self.store.now_arg(),)))


Both = Aggregates | InRedis


@pytest.fixture(params=["memory", "redis"])
def aggregates(request: pytest.FixtureRequest, clock: FrozenClock) -> Both:
    return Aggregates(clock) if request.param == "memory" else InRedis(request.getfixturevalue("redis_url"), clock)


def tell(aggregates: Both, clock: FrozenClock, *counts: MeterCount, meter: str = "one", **times: Any) -> Reply:
    since, sent_at = times.get("since", 0), times.get("sent_at", clock.now_us)
    (reply,) = aggregates.damp([DamperReport(RULE.id, "u", meter, since, sent_at, counts)])
    assert isinstance(reply, Reply), reply
    return reply


def test_a_report_that_comes_twice_or_late_changes_nothing(aggregates: Both, clock: FrozenClock) -> None:
    first, second = MeterCount(INDEX, 100, 300, 300), MeterCount(INDEX, 180, 320, 310)
    clock.to(1)
    for own in (first, second, second, first):
        reply = tell(aggregates, clock, own)
    assert reply.counts[0] == Count(180, 320, 310)


def test_what_no_estimator_looks_at_is_dropped(aggregates: Both, clock: FrozenClock) -> None:
    clock.to(KEPT_SUB_INTERVALS * SUB_INTERVAL_SECONDS)
    owns = [
        MeterCount(INDEX, 5, 5, 5),
        MeterCount(INDEX + 1, 7, 7, 7),
        MeterCount(INDEX + KEPT_SUB_INTERVALS + 2, 3, 3, 3),
    ]
    reply = tell(aggregates, clock, *owns)
    assert [count.attempted for count in reply.counts] == [0, 0, 0, 7]
    clock.step(2 * SUB_INTERVAL_SECONDS)
    assert tell(aggregates, clock).counts[0].attempted == 0, "nor what lies too far ahead"


@pytest.mark.parametrize("away", [-1.6, 1.6, 3600, -3600])
def test_a_sender_whose_clock_is_off_is_told_the_time_and_not_counted(
    aggregates: Both, clock: FrozenClock, away: float
) -> None:
    clock.to(3)
    sent_at = clock.now_us + round(away * 1_000_000)
    reply = tell(aggregates, clock, MeterCount(INDEX, 100, 100, 100), sent_at=sent_at)
    assert reply == Reply(clock.now_us, False, 0, ZERO_COUNTS)
    assert tell(aggregates, clock, sent_at=None) == Reply(clock.now_us, False, 0, ZERO_COUNTS)


def test_after_a_reset_only_what_is_new_counts(aggregates: Both, clock: FrozenClock) -> None:
    clock.to(2)
    tell(aggregates, clock, MeterCount(INDEX, 100, 300, 300), since=NOW)
    assert aggregates.reset(RULE.id, "u") == 1
    given_back = clock.now_us
    clock.to(3)
    again = tell(aggregates, clock, MeterCount(INDEX, 150, 300, 300), since=NOW)
    assert again == Reply(clock.now_us, False, given_back, ZERO_COUNTS)
    assert tell(aggregates, clock, MeterCount(INDEX, 7, 9, 9), since=given_back, meter="new").counts[0].attempted == 7
    clock.to(2 + 2 * KEPT_SUB_INTERVALS * SUB_INTERVAL_SECONDS)
    assert tell(aggregates, clock).reset_at == 0, "and then it is forgotten"


def test_idents_of_whom_nobody_reports_any_more_are_forgotten(clock: FrozenClock) -> None:
    aggregates = Aggregates(clock)
    counts = (MeterCount(INDEX, 5, 5, 5),)
    idents = [f"u{number}" for number in range(FIRST_SWEEP_SIZE - 1)]
    reports = [DamperReport(RULE.id, ident, "one", 0, clock.now_us, counts) for ident in idents]
    aggregates.damp(reports)
    clock.step((2 * KEPT_SUB_INTERVALS + 1) * SUB_INTERVAL_SECONDS)
    assert len(aggregates) == FIRST_SWEEP_SIZE - 1
    later = MeterCount(clock.now_us // SUB_INTERVAL_US, 5, 5, 5)
    aggregates.damp([DamperReport(RULE.id, "new", "one", 0, clock.now_us, (later,))])
    assert len(aggregates) == 1


def test_a_foreign_value_is_replaced(redis_server: RedisServer, redis_url: str, clock: FrozenClock) -> None:
    ours = InRedis(redis_url, clock)
    counter = ours.store.key(RULE.id, "u")
    with redis_server.client() as client:
        client.set(f"{counter}:{INDEX}", "not a hash", ex=600)
        client.rpush(f"{counter}:reset", "not a text")
        client.expire(f"{counter}:reset", 600)
        client.hset(f"{counter}:{INDEX - 1}", mapping={"=": "many", "one": "some"})
        client.expire(f"{counter}:{INDEX - 1}", 600)
    reply = tell(ours, clock, MeterCount(INDEX, 5, 6, 7), MeterCount(INDEX - 1, 3, 3, 3))
    assert reply == Reply(clock.now_us, True, 0, (Count(5, 6, 7), Count(3, 3, 3), *ZERO_COUNTS[2:]))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.sampled_from([0.001, 0.7, 2.0, 5.999, 6.0, 13.0, 60.0, -0.5])),
        st.tuples(
            st.just("tell"),
            st.sampled_from("abc"),
            st.lists(st.tuples(st.integers(-5, 2), *[st.integers(0, 5000)] * 3), max_size=4),
            st.sampled_from([0, 0, 0, 1_400_000, 1_600_000, -10_000_000, None]),
            st.sampled_from([0, 3_000_000, 30_000_000]),
        ),
        st.tuples(st.just("reset")),
    ),
    max_size=30,
)


LAST = ("tell", "a", [], 0, 0)


@given(steps)
@example([("pass", 0.7), ("tell", "a", [(-3, 0, 0, 1)], 0, 0), ("pass", 5.999), *[("pass", -0.5), LAST] * 2])
def test_both_say_the_same_of_any_history(redis_server: RedisServer, history: list[tuple[Any, ...]]) -> None:
    clock = FrozenClock()
    memory, ours = Aggregates(clock), InRedis(redis_server.url, clock)
    with redis_server.client() as client:
        client.flushall()
    for kind, *rest in history:
        if kind == "pass":
            clock.step(rest[0])
        elif kind == "reset":
            assert memory.reset(RULE.id, "u") == ours.reset(RULE.id, "u")
        else:
            meter, owns, off, before = rest
            index = clock.now_us // SUB_INTERVAL_US
            counts = tuple(MeterCount(index + age, *numbers) for age, *numbers in owns)
            sent_at = None if off is None else clock.now_us + off
            report = DamperReport(RULE.id, "u", meter, clock.now_us - before, sent_at, counts)
            assert memory.damp([report]) == ours.damp([report])
    assert immortal_keys(redis_server) == []
