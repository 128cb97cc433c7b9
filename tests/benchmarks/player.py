"""One subject in one process of its own, which plays a round when told to."""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, NamedTuple

from redis import Redis

SPAWN = multiprocessing.get_context("spawn")
PATIENCE = 120
BLOCKS = 5  # of a round, whose median counts: an interruption hits one

Play = Callable[[int], object]


class Subject(NamedTuple):
    """What is measured: ``make(url, *arguments)`` in a module here returns what plays so many calls."""

    name: str
    module: str
    make: str
    arguments: tuple[Any, ...] = ()
    calls: int = 400


class Round(NamedTuple):
    """Microseconds a call: on the clock, and of Redis' processor."""

    took: float
    redis: float


class Player:
    """A subject's process, started at once and ready when ``ready`` returns."""

    def __init__(self, subject: Subject, url: str) -> None:
        self.subject = subject
        self.rounds: list[Round] = []
        self._end, far = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_work, args=(far, subject, url), daemon=True)
        self._process.start()

    def ready(self) -> None:
        self._hear()

    def play(self, server: Redis, calls: int) -> None:
        """One round, of which the first tenth warms up and is not counted."""
        self.tell(calls // 10)
        before = redis_seconds(server)
        took = self.tell(calls)
        self.rounds.append(Round(took * 1e6, (redis_seconds(server) - before) / calls * 1e6))

    def tell(self, calls: int) -> float:
        """Seconds a call, of so many."""
        self._end.send(calls)
        return float(self._hear())

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._end.close()

    def _hear(self) -> Any:
        assert self._end.poll(PATIENCE), f"{self.subject.name} does not answer"
        heard = self._end.recv()
        if isinstance(heard, BaseException):
            raise heard
        return heard


class Result(NamedTuple):
    """All rounds of one subject."""

    rounds: list[Round]

    @property
    def took(self) -> float:
        return median(one.took for one in self.rounds)

    @property
    def redis(self) -> float:
        return median(one.redis for one in self.rounds)

    def ratio(self, base: Result, of: str = "took") -> float:
        """The median of each round's ratio to the same round of another."""
        pairs = zip(self.rounds, base.rounds, strict=True)
        return median(getattr(mine, of) / getattr(other, of) for mine, other in pairs)

    def beyond(self, base: Result) -> Result:
        """What each round took longer than the same round of another."""
        pairs = zip(self.rounds, base.rounds, strict=True)
        return Result([mine._replace(took=mine.took - other.took) for mine, other in pairs])

    def quiet_ratio(self, base: Result) -> float:
        """The ratio of the quietest rounds: what is left when a busy machine disturbs the others."""
        return min(one.took for one in self.rounds) / min(one.took for one in base.rounds)


def compare(subjects: Sequence[Subject], url: str, rounds: int) -> dict[str, Result]:
    """Let the subjects take turns; results by name."""
    with company(subjects, url) as players, Redis.from_url(url) as server:
        for _ in range(rounds):
            for player in players:
                player.play(server, player.subject.calls)
        return {player.subject.name: Result(player.rounds) for player in players}


@contextmanager
def company(subjects: Sequence[Subject], url: str) -> Iterator[list[Player]]:
    """A ready player for each subject."""
    players = [Player(subject, url) for subject in subjects]
    try:
        for player in players:
            player.ready()
        yield players
    finally:
        for player in players:
            player.close()


def redis_seconds(server: Redis) -> float:
    """Processor time that the server's main thread has used."""
    used = server.info("cpu")
    return float(used["used_cpu_user_main_thread"] + used["used_cpu_sys_main_thread"])


def redis_commands(server: Redis) -> tuple[int, int]:
    """Commands so far: with those that scripts gave, and scripts alone."""
    stats: dict[str, Any] = server.info("commandstats")
    own = {name: one["calls"] for name, one in stats.items() if name != "cmdstat_info"}
    return sum(own.values()), own.get("cmdstat_evalsha", 0) + own.get("cmdstat_eval", 0)


def _timed(play: Play, calls: int) -> float:
    start = time.perf_counter()
    play(calls)
    return (time.perf_counter() - start) / calls


def _work(end: Connection, subject: Subject, url: str) -> None:
    try:
        import django

        django.setup()
        module = importlib.import_module(f"tests.benchmarks.{subject.module}")
        play: Play = getattr(module, subject.make)(url, *subject.arguments)
        play(10)
        end.send(0.0)
        while True:
            calls = end.recv()
            end.send(median(_timed(play, max(1, calls // BLOCKS)) for _ in range(min(calls, BLOCKS))))
    except Exception as error:  # noqa: BLE001  (raised again where it is heard)
        end.send(error)
