"""Work done by many threads at once, which change places as often as Python lets them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

THREADS = 16
SWITCH_SECONDS = 1e-6


@contextmanager
def often_switching() -> Iterator[None]:
    """Switch between threads after each few instructions, within the block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def at_once(work: Callable[[int], object], threads: int = THREADS) -> None:
    """Call ``work`` in so many threads, with the number of each; raise the first error of any."""
    barrier = Barrier(threads)

    def run(number: int) -> None:
        barrier.wait()
        work(number)

    with often_switching(), ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(run, number) for number in range(threads)]:
            done.result()
