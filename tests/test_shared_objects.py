"""Objects that threads share and fill when they are read: no thread meets what another has half done.

Threads change places after a few instructions here. Most shows on Python 3.12 and newer, whose ``cached_property`` has
no lock.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from django_throttle.core import Rule
from django_throttle.core.commands import Decide, charges_of
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore

THREADS = 16


@pytest.fixture(autouse=True)
def often_switching() -> Iterator[None]:
    """Switch between threads after each few instructions; less often under coverage, which would take minutes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6 if sys.gettrace() is None else 1e-3)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[int], object]) -> None:
    """Call ``work`` in as many threads as THREADS says, with the number of each; raise the first error of any."""
    barrier = Barrier(THREADS)

    def run(number: int) -> None:
        barrier.wait()
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        try:
            list(pool.map(run, range(THREADS)))
        except BaseException:
            barrier.abort()  # else the process of an interrupted test waits for these threads and never ends
            raise


def test_a_refusal_that_was_just_remembered(redis_url: str) -> None:
    rules = [Rule("api", "1/hour"), Rule("hourly", "5/hour", algorithm="gcra")]
    limiter = Limiter(rules, RedisStore(redis_url, deadline=30.0))
    names = ("retry_after", "outcomes", "rule", "is_ordinary", "limit", "unavailable")
    for turn in range(40):
        ident = f"user:{turn}"
        assert [limiter.acquire(ident).allowed for _ in range(2)] == [True, False]

        def refused(number: int, ident: str = ident) -> None:
            for _ in range(20):
                decision = limiter.acquire(ident)
                assert not decision.allowed
                assert getattr(decision, names[number % len(names)]) is not None
                assert repr(decision.later(0.5)).startswith("Decision(allowed=False, limit=1, remaining=0,")

        at_once(refused)


def test_what_is_owed_after_an_outage(redis_url: str) -> None:
    store, rule = RedisStore(redis_url, deadline=30.0), Rule("api", "100/hour")
    limiter = Limiter([rule], store)
    for turn in range(100):
        ident = f"user:{turn}"
        store.fallback.decide(Decide(charges_of(rule, ident, 1)))
        at_once(lambda _, ident=ident: limiter.acquire(ident))  # type: ignore[misc]
        decision = limiter.peek(ident, cost=0)
        assert (decision.degraded, decision.remaining) == (False, 100 - 1 - THREADS)
