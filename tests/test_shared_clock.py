"""What is decided for everybody does not follow the clock of one host."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.utils import timezone

from django_throttle import rulebook, shared_clock
from django_throttle.call_facts import Facts
from django_throttle.core import Override
from django_throttle.limiter import decide
from django_throttle.models import ThrottleCandidate, ThrottleOverride, ThrottleRule
from django_throttle.rulebook import in_force, sources
from django_throttle.rulebook.snapshot import Overrides
from django_throttle.shared_clock import SharedClock
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.turns import turn_under
from tests.callers import Caller, SameByEveryKey
from tests.inside import count_in
from tests.sockets.guarded import Live, live_enforcer

enforce = pytest.fixture(live_enforcer)
real_now = timezone.now
OFF = pytest.mark.parametrize("off", [-300.0, 300.0], ids=["slow", "fast"])
QUEUE = {"rate": "1/s", "algorithm": "leaky_bucket", "action": "defer", "max_queue": 100, "events": ["task"]}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Makes this process that of a host whose clock is so many seconds off; it knows nothing of the store's yet."""

    def be(off: float) -> None:
        monkeypatch.setattr(timezone, "now", lambda: real_now() + timedelta(seconds=off))
        clock = shared_clock.shared_clock
        clock.offset, clock._log_throttle = 0.0, SharedClock()._log_throttle

    yield be  # type: ignore[misc]
    shared_clock.shared_clock.offset = 0.0


@OFF
def test_turns_are_in_the_order_of_the_calls(enforce: Live, host: Callable[[float], None], off: float) -> None:
    """And at the rate of the rule, whichever host reserves them."""
    enforce(queue={**QUEUE, "key": "user"})
    moments = []
    for number in range(8):
        host(off if number % 2 else 0.0)
        turn = turn_under(decide(Facts("work", ("task",), SameByEveryKey())), "queue")  # type: ignore[arg-type]
        if turn is not None:
            moments.append(turn.at)
            assert turn.wait == pytest.approx(len(moments), abs=2.0)
    assert [after - before for before, after in pairwise(moments)] == pytest.approx([1] * 6, abs=0.5)
    assert moments[0] == pytest.approx(real_now().timestamp() + 1, abs=2.0)


@OFF
def test_an_override_ends_at_its_moment_and_a_process_logs_once_that_its_clock_is_off(
    enforce: Live, host: Callable[[float], None], off: float, caplog: pytest.LogCaptureFixture
) -> None:
    store = enforce()
    host(off)
    for _ in range(3):
        assert in_force.fetch(store)
    (line,) = [record.message for record in caplog.records if "the clock of this host" in record.message]
    assert ("300.0 s behind Redis'" in line) is (off < 0)
    now = real_now().timestamp()
    overrides = Overrides([Override(subject="user:1", effect="block", until=now + more) for more in (60, -60)])
    (lasting,) = overrides.of(Caller(user="user:1"))  # type: ignore[arg-type]
    assert lasting.until == now + 60


@pytest.mark.django_db
@OFF
@pytest.mark.parametrize("store", ["redis", "memory"])
def test_a_candidate_is_promoted_at_its_moment(
    store: str, enforce: Live, host: Callable[[float], None], off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis: RedisStore = enforce()
    if store == "memory":
        count_in(MemoryStore(), monkeypatch)
    for name, more in (("due", -60), ("later", 60)):
        ThrottleRule.objects.create(name=name, rate="5/min")
        candidate = ThrottleCandidate.of(ThrottleRule(name=name, rate="9/min"), name, "anna")
        candidate.starts_at = real_now() + timedelta(seconds=more)
        candidate.save()
    host(off)
    if store == "redis":
        assert in_force.fetch(redis)
    sources.promote_due()
    assert [each.name for each in ThrottleCandidate.objects.all()] == ["later"]
    rulebook.refresh()


@pytest.mark.django_db
@pytest.mark.parametrize("offset", [0.0, 7200.0])
def test_a_site_without_time_zones(settings: Any, monkeypatch: pytest.MonkeyPatch, offset: float) -> None:
    settings.USE_TZ = False
    monkeypatch.setattr(shared_clock.shared_clock, "offset", offset)
    until = datetime.now() + timedelta(hours=1)  # noqa: DTZ005 - as the database of such a site has it
    row = ThrottleOverride(kind="user", value="1", effect="block", rules="*", reason="test", until=until)
    row.save()
    assert (list(ThrottleOverride.objects.in_force()), row.lasts()) == (([], False) if offset else ([row], True))
