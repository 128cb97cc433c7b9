"""Samples of bounded size: their share is known, no caller fills them or empties them, and they recover."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_throttle.console.recording import RecordFlusher, own_records, redis_keys
from django_throttle.console.recording.bounded_sample import RANKS, random_rank, ranks_of
from django_throttle.console.recording.read import Sample, sample
from django_throttle.core import Rule
from django_throttle.stores import AnyStore, MemoryStore, RedisStore
from tests.console.conftest import call

ROOMY = Rule("roomy", "1000000/hour", algorithm="fixed_window")


class Site:
    """A store whose calls are recorded at a time that can be moved."""

    def __init__(self, store: AnyStore, patch: pytest.MonkeyPatch) -> None:
        self.store, self.patch = store, patch
        self.now = timezone.now().replace(minute=5, second=0)
        self.move(0)
        own_records.reset()
        self._flush = RecordFlusher(store) if isinstance(store, RedisStore) else int

    def move(self, minutes: float) -> None:
        self.now = now = self.now + timedelta(minutes=minutes)
        self.patch.setattr(timezone, "now", lambda: now)

    def calls(self, *idents: str, times: int = 1, every: int = 10**9) -> None:
        for number in range(times):
            for ident in idents:
                call(self.store, [ROOMY], ident)
            if number % every == every - 1:
                self._flush()
        self._flush()

    def sample(self, hours: float = 1) -> Sample:
        return sample(self.store, self.now - timedelta(hours=hours), self.now + timedelta(minutes=1))


@pytest.fixture(params=["redis", "memory"])
def site(request: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    yield Site(MemoryStore() if request.param == "memory" else RedisStore(redis_url, deadline=5.0), monkeypatch)
    monkeypatch.undo()
    own_records.reset()


def callers(taken: Sample) -> Counter[str]:
    return Counter(decision.tag for decision in taken.whole)


def test_one_busy_caller_leaves_room_for_the_others(site: Site) -> None:
    names = [f"user:{number}" for number in range(200)]
    busy = names[min(range(200), key=ranks_of(names).__getitem__)]  # the luckiest
    site.calls(busy, times=3000)
    site.calls(*names)
    taken = site.sample()
    assert taken.shares["whole"] == 1 and len(callers(taken)) == 200
    assert (callers(taken)[redis_keys.hashed(busy)], taken.cut) == (810, 1)


def test_a_burst_is_forgotten(site: Site) -> None:
    site.calls(*(f"ip:{number}" for number in range(4000)))
    assert site.sample().shares["whole"] < 0.5
    site.move(70)
    site.calls("user:1", "user:2", times=3)
    taken = site.sample()
    assert (taken.shares["whole"], sorted(callers(taken).values())) == (1, [3, 3])
    assert 0 < len(site.sample(hours=24).whole) <= 32 + 6


def test_a_rank_depends_on_the_secret(settings: Any) -> None:
    names = [f"user:{number}" for number in range(20_000)] + ["\ud800 lone"]
    before = ranks_of(names)
    settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "KEY_SECRET": "another"}
    after = ranks_of(names)
    for ranks in (before, after, [random_rank() for _ in names]):
        for share in (0.5, 0.1, 0.01):
            assert sum(rank < share * RANKS for rank in ranks) == pytest.approx(20_000 * share, rel=0.2)
    both = sum(one < RANKS / 2 > other for one, other in zip(before, after, strict=True))
    assert both == pytest.approx(5000, rel=0.2)
