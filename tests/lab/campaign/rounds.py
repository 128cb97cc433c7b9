"""Plays one round: servers, clients, faults, and what is found when all is quiet again."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from select import select
from typing import Any

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.conftest import immortal_keys
from tests.lab.campaign.checks import QUIET, surely_counted
from tests.lab.campaign.history import RECOVERY, Edit, Fault, History, read
from tests.lab.campaign.limits import LIMITS, SETTINGS, configure
from tests.lab.campaign.plan import PROCESSES, STEPS, Round, Step
from tests.lab.campaign.stage import SPLIT_SECONDS, Stage, database, stage
from tests.servers import slack
from tests.steps import Clock

ROOT = Path(__file__).parents[3]
BUSY = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"
HEAR_SECONDS = slack(60.0)  # until a process has started, or has come to rest
STARTS = ("kill client", "start without database", "start as database is lost")
OF_ONE = ("stop client", "silence client", "client clock", *STARTS)  # what is done to one process
OPERATOR = -1  # the process that edits rules
MANY_SLOTS = 1_000  # by a rule of fewer one could not tell how many too many are held


class Process:
    def __init__(self, given: Mapping[str, Any]) -> None:
        self.number = int(given["process"])
        self.clock = Clock()
        command = [sys.executable, "-m", "tests.lab.campaign.client", json.dumps(given)]
        options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        environment = {**os.environ, **self.clock.environment}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **options)

    def hear(self, expected: str = "") -> str:
        """The answer to one word; fails when none comes, or another one than is expected."""
        assert self.process.stdout
        heard, _, _ = select([self.process.stdout], [], [], HEAR_SECONDS)
        assert heard, f"process {self.number} has said nothing for {HEAR_SECONDS:g} s"
        said = self.process.stdout.readline().strip()
        assert not expected or said == expected, f"process {self.number} has said {said!r}, not {expected!r}"
        return said

    def tell(self, word: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(word + "\n")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


class Editor:
    """The operator of a round; ``edits`` are those that were made, by the monotonic clock."""

    def __init__(self, stack: ExitStack, given: Mapping[str, Any]) -> None:
        self._process = Process({**given, "process": OPERATOR, "records": False})
        stack.callback(self._process.close)
        self._process.hear("ready")
        self.edits = [Edit(int(given["limit"]), 0.0, 0.0)]

    def write(self, limit: int) -> None:
        begin = time.monotonic()
        self._process.tell(f"edit {limit}")
        self._process.hear("written")
        self.edits.append(Edit(limit, begin, time.monotonic()))


@contextmanager
def between(begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    begin()
    try:
        yield
    finally:
        end()


class Crowd:
    """The client processes of a round; one that is killed is followed by another. ``editor`` edits their rules."""

    def __init__(self, stack: ExitStack, this: Round, url: str, folder: Path, *, records: bool = True) -> None:
        self._stack = stack
        self._database = database(this.database, folder)
        self._given = {
            "url": url, "database": self._database.address, "folder": str(folder), "records": records,
            "processes": PROCESSES, "seed": this.seed, "round": this.number,
        }  # fmt: skip
        self.editor = Editor(stack, {**self._given, "limit": this.edits()[0][1]})
        self.killed: dict[int, float] = {}
        self.alive = [self._start(number) for number in range(PROCESSES)]
        for one in self.alive:
            one.hear("ready")
        self._next = PROCESSES

    def go(self) -> None:
        for one in self.alive:
            one.tell("go")

    def stop_client(self, step: Step) -> None:
        one = self.alive[step.choice % PROCESSES]
        os.kill(one.process.pid, signal.SIGSTOP)
        time.sleep(step.seconds)
        os.kill(one.process.pid, signal.SIGCONT)

    silence_client = stop_client  # for longer than a process may be silent

    def kill_client(self, step: Step) -> None:
        place = step.choice % PROCESSES
        one = self.alive[place]
        self.killed[one.number] = time.monotonic()
        one.process.kill()
        one.process.wait()
        time.sleep(step.seconds)
        self._follow(place)

    def _follow(self, place: int) -> None:
        self.alive[place] = self._start(self._next)
        self._next += 1
        self.alive[place].hear("ready")
        self.alive[place].tell("go")

    def client_clock(self, step: Step) -> None:
        self.alive[step.choice % PROCESSES].clock.step(STEPS[step.choice % len(STEPS)])

    def starve(self, step: Step) -> None:
        with ExitStack() as stack:
            for _ in range(2 * (os.cpu_count() or 1)):
                busy = subprocess.Popen([sys.executable, "-c", BUSY, str(step.seconds)], start_new_session=True)
                stack.callback(busy.wait)
                stack.callback(busy.kill)
            time.sleep(step.seconds)

    def lock_database(self, step: Step) -> None:
        with between(self._database.lock, self._database.free):
            self._start_meanwhile(step)

    def lose_database(self, step: Step) -> None:
        with between(self._database.lose, self._database.find):
            self._start_meanwhile(step)

    start_without_database, start_as_database_is_lost = lock_database, lose_database

    def _start_meanwhile(self, step: Step) -> None:
        """In faults of this name a process starts, and decides for a while, before it can read the rules."""
        if step.name in STARTS:
            self.kill_client(step._replace(seconds=0.0))
        time.sleep(step.seconds)

    def rest(self) -> dict[str, int]:
        for one in self.alive:
            one.tell("rest")
        held = dict.fromkeys(LIMITS, 0)
        for one in self.alive:
            for name, number in json.loads(one.hear()).items():
                held[name] += number
        return held

    def grown(self) -> list[dict[str, Any]]:
        for one in self.alive:
            one.tell("measure")
        return [json.loads(one.hear()) for one in self.alive]

    def end(self) -> None:
        for one in self.alive:
            one.tell("end")
        for one in self.alive:
            one.hear("ended")

    def _start(self, number: int) -> Process:
        one = Process({**self._given, "process": number})
        self._stack.callback(one.close)
        return one


def play(this: Round) -> History:
    with stage(this.server) as servers, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="throttle-campaign-")))
        configured()
        crowd = Crowd(stack, this, servers.url, folder)
        server = servers.version if this.server in ("Redis", "Valkey") else f"{this.server}, {servers.version}"
        begin = time.monotonic()
        epoch = time.time()
        faults = load(this, servers, crowd, begin)
        servers.settle()
        faults = with_failovers(servers, faults, epoch)
        truly = crowd.rest()
        held = slots(servers, truly)
        operations, odd = read(folder, begin)
        killed = {number: at - begin for number, at in crowd.killed.items()}
        history = History(operations, faults, PROCESSES, killed, held=held, server=server)
        history.counted = _counted(servers, history)
        history.log = servers.log()
        history.edits = [edit.later(-begin) for edit in crowd.editor.edits]
        crowd.end()
        freed = slots(servers, dict.fromkeys(held, 0))
        history.immortal = [key for server in servers.servers() for key in immortal_keys(server)]
        odd += [f"{name}: {counts} slots are left when all have ended" for name, (counts, _) in freed.items() if counts]
        history.odd = odd
    return history


def load(this: Round, servers: Stage, crowd: Crowd, begin: float) -> list[Fault]:
    found: list[Fault] = []

    def follow(steps: Iterable[Step], act: Callable[[Step], object]) -> None:
        for step in steps:
            time.sleep(max(0.0, begin + step.at - time.monotonic()))
            act(step)

    def strike(step: Step) -> None:
        found.extend(servers.play(step))

    def meddle(step: Step) -> None:
        since = time.monotonic()
        hit = crowd.alive[step.choice % PROCESSES].number if step.name in OF_ONE else None
        getattr(crowd, step.name.replace(" ", "_"))(step)
        # Who was silent for long comes back with slots that others have taken meanwhile.
        found.append(Fault(since, time.monotonic(), step.name, 0, int(step.name == "silence client"), hit))

    of_servers, of_clients = this.faults()
    edits = [Step("edit", at, 0.0, limit) for at, limit in this.edits()[1:]]
    crowd.go()
    with ThreadPoolExecutor(3) as threads:
        lanes = [
            threads.submit(follow, of_servers, strike),
            threads.submit(follow, of_clients, meddle),
            threads.submit(follow, edits, lambda step: crowd.editor.write(step.choice)),
        ]
    time.sleep(max(0.0, begin + this.seconds - time.monotonic()))
    for lane in lanes:
        lane.result()
    return sorted(fault.later(-begin) for fault in found)


def with_failovers(servers: Stage, faults: Iterable[Fault], epoch: float) -> list[Fault]:
    """A fault that has caused a failover lasts until that is over. One without a cause may lose as much."""
    found = list(faults)
    for begun, over in servers.failovers():
        begin, end = begun - epoch - RECOVERY, over - epoch + SPLIT_SECONDS
        causes = [fault for fault in found if fault.losses and fault.begin < end and fault.end > begin]
        found = [fault._replace(end=max(fault.end, end)) if fault in causes else fault for fault in found]
        if not causes:
            found.append(Fault(begin, end, "failover", 2, 2))
    return found


def _used(rule: Rule, ident: str, servers: Stage) -> int | None:
    decision = Limiter([rule], RedisStore(servers.direct, secret=SETTINGS["KEY_SECRET"], deadline=2.0)).peek(ident)
    if decision.degraded or decision.limit is None or decision.remaining is None:
        return None
    return decision.limit - decision.remaining


def slots(servers: Stage, truly: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """The slots that are counted, once they are those that are held, or after a while."""
    found: dict[str, tuple[int, int]] = {}
    until = time.monotonic() + QUIET
    for name, limit in LIMITS.items():
        if limit.kind == "lease":
            counted = None
            while counted != truly[name] and (time.monotonic() < until or counted is None):
                if counted is not None:
                    time.sleep(0.1)
                counted = _used(replace(limit.rule, limit=MANY_SLOTS), limit.ident, servers)
            found[name] = counted, truly[name]
    return found


def _counted(servers: Stage, history: History) -> dict[str, int]:
    found: dict[str, int] = {}
    until = time.monotonic() + QUIET
    for name, limit in LIMITS.items():
        if limit.kind in ("tally", "local tally"):
            least = surely_counted(history, limit)
            while (used := _used(limit.rule, limit.ident, servers)) is None or used < least:
                if used is not None and time.monotonic() > until:
                    break
                time.sleep(0.1)
            found[name] = used
    return found


@cache
def configured() -> None:
    configure({"url": None, "database": ":memory:"})
