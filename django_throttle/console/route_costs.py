"""What requests of each route use: histograms of each process, which its agent adds up in Redis for a day.

A histogram is a number for each bucket, four of which double the value: a percentile is exact for small numbers, and
else off by 10 % at most. What has not been sent is lost with a process that is killed. What a failed call sent is sent
again, so it may count twice.
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
PERIOD: Final = 4 * 3600  # seconds that one hash is about
PERIODS: Final = HOURS * 3600 // PERIOD
TTL_MS: Final = (PERIODS + 1) * PERIOD * 1000
MOST_SCOPES: Final = 200  # of a process; the others share one name
OTHERS: Final = "(others)"
MOST_WAITING: Final = 100  # requests whose costs have yet to be put into buckets
PER_OCTAVE: Final = 4
SCALES: Final = {name: 1000 if name.endswith("_ms") else 1 for name in MEASURES}  # times are kept in microseconds
SUM: Final = "sum"

Fields = Counter[str]  # "measure:bucket:scope", and "measure:sum:scope"


class RouteCosts:
    """The costs of this process that have not been sent; added by any thread."""

    def __init__(self) -> None:
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._waiting: list[tuple[str, dict[str, float]]] = []
        self._routes: dict[str, dict[str, dict[int | str, int]]] = {}  # by scope, measure, and bucket or SUM
        self._unsent: Fields = Counter()

    def add(self, scope: str, meter: Meter) -> None:
        """Count one request of this scope."""
        self._waiting.append((scope, meter.measures))
        if len(self._waiting) >= MOST_WAITING:
            with self._lock:
                self._count()

    def put_back(self, fields: Fields) -> None:
        """Count what has been taken and could not be sent."""
        with self._lock:
            self._unsent.update(fields)

    def take(self) -> Fields:
        """All of it, which is forgotten here."""
        with self._lock:
            found = self._found()
            self._routes, self._unsent = {}, Counter()
            return found

    def look(self) -> Fields:
        """All of it."""
        with self._lock:
            return self._found()

    def _found(self) -> Fields:
        self._count()
        found = Counter(self._unsent)
        for scope, measures in self._routes.items():
            for name, numbers in measures.items():
                found.update({f"{name}:{bucket}:{scope}": number for bucket, number in numbers.items()})
        return found

    def _count(self) -> None:
        waiting = self._waiting[: len(self._waiting)]
        del self._waiting[: len(waiting)]  # of the same list, as other threads add to it
        for given, measures in waiting:
            scope = given if given in self._routes or len(self._routes) < MOST_SCOPES else OTHERS
            route = self._routes.get(scope) or self._routes.setdefault(scope, {name: {SUM: 0} for name in MEASURES})
            for name, value in measures.items():
                numbers, number = route[name], round(value * SCALES[name])
                bucket = bucket_of(number)
                numbers[bucket] = numbers.get(bucket, 0) + 1
                numbers[SUM] += number


route_costs: Final = RouteCosts()


def bucket_of(number: int) -> int:
    """The bucket of a whole number: 0 for 0, else four for each octave."""
    return 1 + int(log2(number) * PER_OCTAVE) if number > 0 else 0


def value_of(bucket: int) -> float:
    """The middle of the whole numbers in a bucket."""
    if bucket == 0:
        return 0.0
    least, end = (2 ** ((bucket - more) / PER_OCTAVE) for more in (1, 0))
    return (ceil(least) + max(ceil(least), ceil(end) - 1)) / 2


class CostFlusher:
    """Sends what has been counted every so many ``seconds``; used by one thread."""

    seconds = 10.0

    def __init__(self, store: RedisStore) -> None:
        self.store = store

    def __call__(self) -> None:
        """Send it, a batch a call. Raises StoreError, and what has not arrived for certain is sent later."""
        key, left = _key(self.store, _period()), route_costs.take()
        try:
            for batch in batches(list(left.items())):
                self.store.call("add_costs", [key], [TTL_MS, *(part for pair in batch for part in pair)])
                for field, _ in batch:
                    del left[field]
        finally:
            route_costs.put_back(left)


def costs_job(store: RedisStore) -> StoreJob:
    flusher = CostFlusher(store)
    return StoreJob("sending the costs of routes", flusher.seconds, flusher, flusher)


def fetch(store: AnyStore) -> Fields:
    """The costs of the last 24 hours, or 4 less, of all processes; of a store in memory, of this one.

    Raises StoreError.
    """
    if not store.is_remote:
        return route_costs.look()
    period, found = _period(), Fields()
    replies = store.pipeline([("read_costs", [_key(store, period - age)], []) for age in range(PERIODS)])
    raise_first(errors_of(replies))
    for reply in replies:
        for field, number in zip(reply[::2], reply[1::2], strict=True):
            found[text(field)] += int(number)
    return found


def _period() -> int:
    return int(timezone.now().timestamp()) // PERIOD


def _key(store: RedisStore, period: int) -> str:
    return store.process_key(f"costs:{period}")


class Spread(NamedTuple):
    """What one measure of a route came to, a request: the mean, and what 50, 95 and 99 % of requests do not exceed."""

    mean: float
    p50: float
    p95: float
    p99: float


class RouteCost(NamedTuple):
    """What the requests of a scope used; ``spreads`` by the name of the measure."""

    scope: str
    calls: int
    spreads: Mapping[str, Spread]

    def total(self, measure: str) -> float:
        """What all its requests came to together."""
        return self.calls * self.spreads[measure].mean

    def as_json(self) -> dict[str, object]:
        return {"scope": self.scope, "calls": self.calls, **{k: v._asdict() for k, v in self.spreads.items()}}


def dearest(fields: Mapping[str, int], by: str = "wall_ms") -> list[RouteCost]:
    """Each route's costs, those first whose requests used most of a measure together."""
    return sorted(_routes(fields), key=lambda route: (-route.total(by), route.scope))


def _routes(fields: Mapping[str, int]) -> Iterator[RouteCost]:
    counts: dict[str, dict[str, dict[int, int]]] = defaultdict(lambda: {name: {} for name in MEASURES})
    for field, number in fields.items():
        name, bucket, scope = field.split(":", 2)
        if bucket != SUM and name in SCALES:
            counts[scope][name][int(bucket)] = number
    for scope, of in counts.items():
        calls = max(sum(numbers.values()) for numbers in of.values())
        sums = {name: fields.get(f"{name}:{SUM}:{scope}", 0) for name in of}
        yield RouteCost(scope, calls, {name: _spread(of[name], sums[name], SCALES[name]) for name in of})


def _spread(numbers: Mapping[int, int], total: int, scale: int) -> Spread:
    calls = sum(numbers.values())
    shares = [_percentile(numbers, ceil(calls * share)) / scale for share in (0.5, 0.95, 0.99)]
    return Spread(total / calls / scale, *shares)


def _percentile(numbers: Mapping[int, int], place: int) -> float:
    """The value of the request at this place, from the least; the first place is 1."""
    buckets = sorted(numbers)
    last_places = list(accumulate(numbers[bucket] for bucket in buckets))
    return value_of(buckets[bisect_left(last_places, place)])


def in_short(number: float) -> str:
    """Such as "12,345", "57" or "0.3", with the separators of the language in force."""
    return written(number, ",.0f" if number >= 100 or number == int(number) else ".1f")
