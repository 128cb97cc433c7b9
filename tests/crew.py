"""Worker processes that run one function at the same moment: for races, forks and event loops of their own."""

import asyncio
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import django

from django_throttle.agent import jobs
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore

SPAWN = multiprocessing.get_context("spawn")
IN_FLIGHT = 20


class Crew:
    """``size`` processes; ``run`` starts the same function in all of them at once and gathers what they return."""

    def __init__(self, size: int) -> None:
        self._gate = SPAWN.Barrier(size)
        pipes = [SPAWN.Pipe() for _ in range(size)]
        self._ends = [near for near, _ in pipes]
        self._workers = [
            SPAWN.Process(target=_work, args=(number, far, self._gate), daemon=True)
            for number, (_, far) in enumerate(pipes)
        ]
        for worker in self._workers:
            worker.start()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What ``function(number of the worker, *arguments)`` returned in each; raises the first error."""
        for end in self._ends:
            end.send((function, arguments))
        answers = []
        for end in self._ends:
            assert end.poll(60), "a worker does not answer"
            answers.append(end.recv())
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def close(self) -> None:
        for worker, end in zip(self._workers, self._ends, strict=True):
            worker.kill()
            worker.join()
            end.close()


def begin_nothing(service: Any, *, rules: bool) -> None:
    """Start no thread for a store."""
    service.watches_rules = service.watches_rules or rules


def _work(number: int, end: Connection, gate: Barrier) -> None:
    django.setup()
    # Nobody beats for what a worker holds: it would be seen by the tests after its own.
    jobs._StoreService.begin = begin_nothing  # type: ignore[method-assign]
    while True:
        function, arguments = end.recv()
        gate.wait(60)
        try:
            end.send(function(number, *arguments))
        except Exception as error:  # noqa: BLE001  (raised again by run)
            end.send(error)


def store_of(url: str) -> RedisStore:
    """A store that a busy machine does not keep from answering."""
    return RedisStore(url, deadline=10.0)


def hammer(number: int, url: str, rule: Rule, ident: str, calls: int) -> tuple[int, int]:
    """(allowed, degraded) of so many calls; workers with an even number are synchronous, the others are not."""
    limiter = Limiter([rule], store_of(url))
    if number % 2 == 0:
        decisions = [limiter.acquire(ident) for _ in range(calls)]
    else:
        decisions = asyncio.run(_acquire_all(limiter, ident, calls))
    return sum(decision.allowed for decision in decisions), sum(decision.degraded for decision in decisions)


async def _acquire_all(limiter: Limiter, ident: str, calls: int) -> list[Any]:
    decisions: list[Any] = []
    while len(decisions) < calls:
        batch = min(IN_FLIGHT, calls - len(decisions))
        decisions += await asyncio.gather(*(limiter.aacquire(ident) for _ in range(batch)))
    return decisions
