"""Processes that play one subject each, and the table of their figures."""

import asyncio
import importlib
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

from redis import Redis

SPAWN = multiprocessing.get_context("spawn")
PATIENCE = 120
# Of a round. A block takes a millisecond or few, so that on a busy machine too some are not interrupted.
BLOCKS = 20

Play = Callable[[int], object]


class Subject(NamedTuple):
    """What is measured: ``make(url, *arguments)`` in a module here returns what plays so many calls: a block."""

    name: str
    module: str
    make: str
    arguments: tuple[Any, ...] = ()
    calls: int = 20


class Result(NamedTuple):
    """Microseconds a call of the best block, and of Redis' processor in the best round: the best is what repeats."""

    took: float
    redis: float


class Started:
    """A process that is started at once, and that answers what it is told."""

    def __init__(self, name: str, work: Callable[..., None], *arguments: Any) -> None:
        self.name = name
        self._end, far = SPAWN.Pipe()
        self._process = SPAWN.Process(target=work, args=(far, *arguments), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid, "it has been started"
        return self._process.pid

    def ask(self, message: Any, patience: float = PATIENCE) -> Any:
        self._end.send(message)
        return self.hear(patience)

    def hear(self, patience: float = PATIENCE) -> Any:
        assert self._end.poll(patience), f"{self.name} does not answer"
        heard = self._end.recv()
        if isinstance(heard, BaseException):
            raise heard
        return heard

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._end.close()


class Player(Started):
    """A subject's process; it is ready, and where its starter runs, when it is first heard."""

    def __init__(self, subject: Subject, url: str) -> None:
        self.subject = subject
        self.rounds: list[Result] = []
        super().__init__(subject.name, _work, subject, url)

    def play(self, server: Redis) -> None:
        self.tell(self.subject.calls)
        before = redis_seconds(server)
        took = self.tell(self.subject.calls, BLOCKS)
        redis = redis_seconds(server) - before
        self.rounds.append(Result(took * 1e6, redis / (BLOCKS * self.subject.calls) * 1e6))

    def tell(self, calls: int, blocks: int = 1) -> float:
        """Seconds a call, in the best of so many blocks of so many calls."""
        return float(self.ask((calls, blocks)))


def compare(subjects: Sequence[Subject], url: str, rounds: int) -> dict[str, Result]:
    with company(subjects, url) as players, Redis.from_url(url) as server:
        for _ in range(rounds):
            for player in players:
                player.play(server)
        return {player.subject.name: Result(*map(min, zip(*player.rounds, strict=True))) for player in players}


@contextmanager
def company(subjects: Sequence[Subject], url: str) -> Iterator[list[Player]]:
    players = [Player(subject, url) for subject in subjects]
    try:
        for player in players:
            player.hear()
        yield players
    finally:
        for player in players:
            player.close()


def redis_seconds(server: Redis) -> float:
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
        module = importlib.import_module(f"tests.lab.benchmarks.{subject.module}")
        play: Play = getattr(module, subject.make)(url, *subject.arguments)
        play(10)
        end.send(0.0)
        while True:
            calls, blocks = end.recv()
            end.send(min(_timed(play, calls) for _ in range(blocks)))
    except Exception as error:  # noqa: BLE001  (raised again where it is heard)
        end.send(error)


IN_FLIGHT = 50
PIPED = 100
# Enough that no ident's history is long, few enough that all of it stays in the processor's cache.
IDENTS = [f"user:{number}" for number in range(100)]


def one_by_one(call: Callable[[str], object], *, fresh: bool = False) -> Play:
    numbers = count()

    def play(calls: int) -> None:
        if fresh:
            for _ in range(calls):
                call(f"fresh:{next(numbers)}")
            return
        for at in range(calls):
            call(IDENTS[at % len(IDENTS)])

    return play


def in_flight(call: Callable[[str], Awaitable[Any]], *, fresh: bool = False, width: int = IN_FLIGHT) -> Play:
    """Fifty coroutines on one loop, each with one call under way at any time; under new idents where ``fresh``."""
    loop, numbers = asyncio.new_event_loop(), count()

    async def caller(number: int, calls: int) -> None:
        for _ in range(calls):
            await call(f"fresh:{next(numbers)}" if fresh else IDENTS[number % len(IDENTS)])

    async def together(calls: int) -> None:
        await asyncio.gather(*(caller(number, -(-calls // width)) for number in range(width)))

    return lambda calls: loop.run_until_complete(together(calls))


def in_turn(call: Callable[[str], Awaitable[Any]]) -> Play:
    loop = asyncio.new_event_loop()

    async def play(calls: int) -> None:
        for at in range(calls):
            await call(IDENTS[at % len(IDENTS)])

    return lambda calls: loop.run_until_complete(play(calls))


def another(pristine: Any) -> Any:
    request = object.__new__(type(pristine))
    request.__dict__.update(pristine.__dict__)
    return request


def piped(url: str, commands: Sequence[Sequence[Any]]) -> Play:
    """The commands in turn, a hundred in one go, so that Redis does little but carry them out."""
    connection = Redis.from_url(url).connection_pool.get_connection()
    packed = b"".join(part for at in range(PIPED) for part in connection.pack_command(*commands[at % len(commands)]))

    def play(calls: int) -> None:
        for _ in range(-(-calls // PIPED)):
            connection.send_packed_command([packed], check_health=False)
            for _ in range(PIPED):
                connection.read_response(disable_decoding=True)

    return play


class Row(NamedTuple):
    """A figure in ``unit``, and what is asked of it or of its ``ratio`` to what ``beside`` names."""

    section: str
    what: str
    value: float | None
    unit: str
    ratio: float | None = None
    beside: str = ""
    asked: float | None = None
    sense: Literal["≤", "≥"] = "≤"
    note: str = ""
    group: str = ""  # what ``make bench ARGS="--only …"`` calls it

    @property
    def judged(self) -> float | None:
        return self.value if self.ratio is None else self.ratio

    @property
    def verdict(self) -> str:
        if self.asked is None or self.judged is None:
            return ""
        met = self.judged <= self.asked if self.sense == "≤" else self.judged >= self.asked
        return "met" if met else "MISSED"


def show(rows: Sequence[Row]) -> str:
    lines: list[str] = []
    for at, row in enumerate(rows):
        if at == 0 or rows[at - 1].section != row.section:
            lines += ["", f"{row.section:<73} {'ratio':>9}  {'to':<22} {'asked':>11}"]
        value = "" if row.value is None else _number(row.value)
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        asked = "" if row.asked is None else f"{row.sense} {_number(row.asked)}"
        figure = f"  {row.what:<56} {value:>11} {row.unit:<4} {ratio:>7}"
        lines.append(f"{figure}  {row.beside:<22} {asked:>11} {row.verdict} {row.note}".rstrip())
    return "\n".join(lines)


def write(rows: Sequence[Row], circumstances: dict[str, Any], path: Path) -> None:
    figures = list(map(as_json, rows))
    path.write_text(json.dumps({"circumstances": circumstances, "figures": figures}, indent=2, ensure_ascii=False))


def as_json(row: Row) -> dict[str, Any]:
    return {**row._asdict(), "verdict": row.verdict}


def circumstances(server: dict[str, Any], rounds: int) -> dict[str, Any]:
    return {
        "redis": server["redis_version"], "python": platform.python_version(), "processors": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()], "rounds": rounds,
    }  # fmt: skip


def _number(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.2f}" if number < 100 else f"{number:.1f}"
