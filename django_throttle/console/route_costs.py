"""Costs of requests by route: histograms of each process, which agents add up in Redis for a day.

A histogram has a number for each bucket. Four buckets double the value, so that a percentile is off by at most 10 %,
and exact for small numbers. A killed process loses the costs it has not sent. Costs are sent again after a failed call,
so they may count twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import ceil, log2
from threading import Lock
from typing import Final, NamedTuple

from django.utils import timezone

from django_throttle.agent import StoreJob
from django_throttle.costs.meter import MEASURES, Meter
from django_throttle.runtime import in_child
from django_throttle.stores import AnyStore, RedisStore
from django_throttle.stores.redis.failures import errors_of, raise_first
from django_throttle.stores.redis.pool import text
from django_throttle.stores.redis.transport import batches
from django_throttle.translated import written

HOURS: Final = 24
PERIOD: Final = 4 * 3600  # seconds whose costs are in a hash
PERIODS: Final = HOURS * 3600 // PERIOD
TTL_MS: Final = (PERIODS + 1) * PERIOD * 1000
MAX_SCOPES: Final = 200  # of a process
OTHERS: Final = "(others)"  # name of the scopes beyond MAX_SCOPES
MAX_UNCOUNTED_REQUESTS: Final = 100  # requests that are put into buckets together
BUCKETS_PER_OCTAVE: Final = 4
SCALES: Final = {name: 1000 if name.endswith("_ms") else 1 for name in MEASURES}  # times are in microseconds
SUM: Final = "sum"

Fields = Counter[str]  # "measure:bucket:scope", and "measure:sum:scope"


class RouteCosts:
    """Costs of this process that were not sent yet. Thread-safe."""

    def __init__(self) -> None:
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._uncounted: list[tuple[str, dict[str, float]]] = []
        self._routes: dict[str, dict[str, dict[int | str, int]]] = {}  # by scope, measure, and bucket or SUM
        self._unsent: Fields = Counter()

    def add(self, scope: str, meter: Meter) -> None:
        """Count a request of this scope."""
        self._uncounted.append((scope, meter.measures))
        if len(self._uncounted) >= MAX_UNCOUNTED_REQUESTS:
            with self._lock:
                self._count()

    def put_back(self, fields: Fields) -> None:
        """Add costs that were taken and could not be sent."""
        with self._lock:
            self._unsent.update(fields)

    def take(self) -> Fields:
        """Return all costs, and remove them here."""
        with self._lock:
            fields = self._fields()
            self._routes, self._unsent = {}, Counter()
            return fields

    def peek(self) -> Fields:
        """Return all costs."""
        with self._lock:
            return self._fields()

    def _fields(self) -> Fields:
        self._count()
        fields = Counter(self._unsent)
        for scope, measures in self._routes.items():
            for name, numbers in measures.items():
                fields.update({f"{name}:{bucket}:{scope}": number for bucket, number in numbers.items()})
        return fields

    def _count(self) -> None:
        requests = self._uncounted[: len(self._uncounted)]
        del self._uncounted[: len(requests)]  # in place, because other threads append to the list
        for request_scope, measures in requests:
            has_room = request_scope in self._routes or len(self._routes) < MAX_SCOPES
            scope = request_scope if has_room else OTHERS
            route = self._routes.get(scope) or self._routes.setdefault(scope, {name: {SUM: 0} for name in MEASURES})
            for name, value in measures.items():
                numbers, number = route[name], round(value * SCALES[name])
                bucket = bucket_of(number)
                numbers[bucket] = numbers.get(bucket, 0) + 1
                numbers[SUM] += number


route_costs: Final = RouteCosts()


def bucket_of(number: int) -> int:
    """Return the bucket of a whole number: 0 for 0, else one of four for each octave."""
    return 1 + int(log2(number) * BUCKETS_PER_OCTAVE) if number > 0 else 0


def value_of(bucket: int) -> float:
    """Return the middle of the whole numbers in a bucket."""
    if bucket == 0:
        return 0.0
    start, end = 2 ** ((bucket - 1) / BUCKETS_PER_OCTAVE), 2 ** (bucket / BUCKETS_PER_OCTAVE)
    return (ceil(start) + max(ceil(start), ceil(end) - 1)) / 2


class CostFlusher:
    """Sends the costs of this process. Used by one thread."""

    seconds = 10.0  #: interval

    def __init__(self, store: RedisStore) -> None:
        self.store = store

    def __call__(self) -> None:
        """Send the costs in batches. Raise StoreError, and keep the costs that have not arrived for certain."""
        key, unsent = _key(self.store, _period()), route_costs.take()
        try:
            for batch in batches(list(unsent.items())):
                self.store.call("add_costs", [key], [TTL_MS, *(part for pair in batch for part in pair)])
                for field, _ in batch:
                    del unsent[field]
        finally:
            route_costs.put_back(unsent)


def costs_job(store: RedisStore) -> StoreJob:
    flusher = CostFlusher(store)
    return StoreJob("sending the costs of routes", flusher.seconds, flusher, flusher)


def fetch(store: AnyStore) -> Fields:
    """Return the costs of the last 20 to 24 hours of all processes. With a memory store, return those of this process.

    Raise StoreError.
    """
    if not store.is_remote:
        return route_costs.peek()
    period, fields = _period(), Fields()
    replies = store.pipeline([("read_costs", [_key(store, period - age)], []) for age in range(PERIODS)])
    raise_first(errors_of(replies))
    for reply in replies:
        for field, number in zip(reply[::2], reply[1::2], strict=True):
            fields[text(field)] += int(number)
    return fields


def _period() -> int:
    return int(timezone.now().timestamp()) // PERIOD


def _key(store: RedisStore, period: int) -> str:
    return store.process_key(f"costs:{period}")


class Spread(NamedTuple):
    """Mean and percentiles of a measure of a route, for a request."""

    mean: float
    p50: float
    p95: float
    p99: float


class RouteCost(NamedTuple):
    """Costs of the requests of a scope."""

    scope: str
    calls: int
    spreads: Mapping[str, Spread]  #: by measure

    def total(self, measure: str) -> float:
        """Return the sum of a measure over all requests."""
        return self.calls * self.spreads[measure].mean

    def as_json(self) -> dict[str, object]:
        return {
            "scope": self.scope,
            "calls": self.calls,
            **{name: spread._asdict() for name, spread in self.spreads.items()},
        }


def most_expensive(fields: Mapping[str, int], measure: str = "wall_ms") -> list[RouteCost]:
    """Return the costs of each route, those with the largest sum of a measure first."""
    return sorted(_routes(fields), key=lambda route: (-route.total(measure), route.scope))


def _routes(fields: Mapping[str, int]) -> Iterator[RouteCost]:
    counts: dict[str, dict[str, dict[int, int]]] = defaultdict(lambda: {name: {} for name in MEASURES})
    for field, number in fields.items():
        name, bucket, scope = field.split(":", 2)
        if bucket != SUM and name in SCALES:
            counts[scope][name][int(bucket)] = number
    for scope, measures in counts.items():
        calls = max(sum(numbers.values()) for numbers in measures.values())
        sums = {name: fields.get(f"{name}:{SUM}:{scope}", 0) for name in measures}
        spreads = {name: _spread(numbers, sums[name], SCALES[name]) for name, numbers in measures.items()}
        yield RouteCost(scope, calls, spreads)


def _spread(numbers: Mapping[int, int], total: int, scale: int) -> Spread:
    calls, buckets = sum(numbers.values()), sorted(numbers)
    last_ranks = list(accumulate(numbers[bucket] for bucket in buckets))  # ranks of requests are from 1
    places = [bisect_left(last_ranks, ceil(calls * share)) for share in (0.5, 0.95, 0.99)]
    return Spread(total / calls / scale, *(value_of(buckets[place]) / scale for place in places))


def in_short(number: float) -> str:
    """Return a number as "12,345", "57" or "0.3", with the separators of the current language."""
    return written(number, ",.0f" if number >= 100 or number == int(number) else ".1f")
