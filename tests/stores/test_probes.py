"""A probe that nobody reports, or that tells nothing of the store, does not keep the breaker open for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import exceptions as errors

from django_throttle.core import Rule
from django_throttle.exceptions import Cause
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.denials import Denials
from django_throttle.stores.failures import Breaker, cause_of
from tests.forks import holds_in_child
from tests.inside import lock_of

RULE = Rule("rule", "1000/hour")


class Seconds:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def opened(seconds: Seconds) -> Breaker:
    """A breaker that may be probed in a second."""
    breaker = Breaker(clock=seconds, chance=lambda: 0.0)
    for _ in range(5):
        breaker.failed()
    return breaker


def test_a_probe_that_is_never_reported_is_followed_by_another_a_pause_later(opened: Breaker, seconds: Seconds) -> None:
    for _ in range(3):
        seconds.now += 1.0
        assert opened.admit() == 0.0
        seconds.now += 0.75
        assert opened.admit() == 0.25
        seconds.now -= 0.75
    opened.failed()
    assert opened.admit() == 2.0, "the pause is doubled once, for the one that was reported"


def test_an_abandoned_probe_lets_the_next_call_probe_at_once(opened: Breaker, seconds: Seconds) -> None:
    seconds.now += 1.0
    for _ in range(5):
        assert opened.admit() == 0.0
        opened.abandoned()
    assert opened.admit() == 0.0 and opened.admit() > 0
    opened.succeeded()
    assert not opened.is_open


def test_who_abandons_without_having_probed_changes_nothing(opened: Breaker) -> None:
    opened.abandoned()
    assert opened.admit() == 1.0


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (errors.ConnectionError("Too many connections"), Cause.POOL),
        (errors.AuthenticationError("invalid username-password pair"), Cause.CONFIG),
        (errors.ResponseError("ERR user_script:1: attempt to index a nil value"), Cause.BUG),
    ],
    ids=lambda value: value.name if isinstance(value, Cause) else "",
)
def test_after_a_probe_that_fails_for_another_reason_the_next_call_is_one(
    error: Exception, cause: Cause, opened: Breaker, seconds: Seconds, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = RedisStore(redis_url, deadline=5.0)
    store.breaker = opened
    limiter, send_all = Limiter([RULE], store), store.transport.send_all
    seconds.now += 1.0
    assert cause_of(error) is cause

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(store.transport, "send_all", fail)
    assert limiter.acquire("user:1").degraded
    assert opened.is_open
    monkeypatch.setattr(store.transport, "send_all", send_all)
    assert not limiter.acquire("user:1").degraded
    assert not opened.is_open


def decide(store: MemoryStore) -> bool:
    return Limiter([RULE], store).acquire("user:1").allowed


@pytest.mark.parametrize(
    ("make", "use"),
    [
        (MemoryStore, decide),
        (Denials, lambda denials: denials.clear() is None),
        (Breaker, lambda breaker: not breaker.failed()),
    ],
    ids=["memory", "denials", "breaker"],
)
def test_a_child_that_is_forked_while_a_lock_is_held_does_not_hang(
    make: Callable[[], Any], use: Callable[[Any], bool]
) -> None:
    owner = make()
    with lock_of(owner):  # a thread of the parent's has it, which the child does not
        assert holds_in_child(lambda: use(owner))


def test_a_probe_of_the_parent_s_does_not_keep_the_child_s_breaker_open(opened: Breaker, seconds: Seconds) -> None:
    seconds.now += 1.0
    assert opened.admit() == 0.0

    def probes() -> bool:
        seconds.now += 1.0
        return opened.admit() == 0.0

    with lock_of(opened):
        assert holds_in_child(probes)
