"""Plays one round: servers, clients, faults, and what is found when all is quiet again."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from select import select
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.campaign.checks import surely_counted
from tests.campaign.history import Fault, History, read
from tests.campaign.limits import LIMITS, SETTINGS
from tests.campaign.plan import LOAD_SECONDS, PROCESSES, STEPS, Round, Step
from tests.campaign.stage import Stage, stage
from tests.conftest import immortal_keys
from tests.servers import slack
from tests.steps import Clock

ROOT = Path(__file__).parents[2]
QUIET = slack(20.0)  # until breakers have closed, late charges arrived, and dead processes' slots are free
DATABASE = "rules.sqlite3"
BUSY = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"
HEAR_SECONDS = slack(60.0)  # until a process has started, or has come to rest
MANY_SLOTS = 1_000  # by a rule of fewer one could not tell how many too many are held


class Process:
    """One client process."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.number = int(given["process"])
        self.clock = Clock()
        command = [sys.executable, "-m", "tests.campaign.client", json.dumps(given)]
        options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        environment = {**os.environ, **self.clock.environment}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **options)

    def hear(self) -> str:
        """The answer to one word; fails when none comes."""
        assert self.process.stdout
        heard, _, _ = select([self.process.stdout], [], [], HEAR_SECONDS)
        assert heard, f"process {self.number} has said nothing for {HEAR_SECONDS:g} s"
        return self.process.stdout.readline().strip()

    def tell(self, word: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(word + "\n")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


class Crowd:
    """The client processes of a round; one that is killed is followed by another."""

    def __init__(
        self, stack: ExitStack, this: Round, url: str, folder: Path, database: Path, *, records: bool = True
    ) -> None:
        self._stack = stack
        self._given = {"url": url, "folder": str(folder), "database": str(database), "records": records}
        self._given |= {"processes": PROCESSES, "seed": this.seed, "round": this.number}
        self.killed: dict[int, float] = {}
        self.alive = [self._start(number) for number in range(PROCESSES)]
        for one in self.alive:
            self._ready(one)
        self._next = PROCESSES

    def go(self) -> None:
        for one in self.alive:
            one.tell("go")

    def stop_client(self, step: Step) -> None:
        one = self.alive[step.choice % PROCESSES]
        os.kill(one.process.pid, signal.SIGSTOP)
        time.sleep(step.seconds)
        os.kill(one.process.pid, signal.SIGCONT)

    def kill_client(self, step: Step) -> None:
        place = step.choice % PROCESSES
        one = self.alive[place]
        self.killed[one.number] = time.monotonic()
        one.process.kill()
        one.process.wait()
        time.sleep(step.seconds)
        self.alive[place] = self._start(self._next)
        self._next += 1
        self._ready(self.alive[place])
        self.alive[place].tell("go")

    def client_clock(self, step: Step) -> None:
        """The clock of its host is set: nobody counts by it but the process alone."""
        self.alive[step.choice % PROCESSES].clock.step(STEPS[step.choice % len(STEPS)])

    def starve(self, step: Step) -> None:
        """Others want the processor, twice as many as there are."""
        with ExitStack() as stack:
            for _ in range(2 * (os.cpu_count() or 1)):
                busy = subprocess.Popen([sys.executable, "-c", BUSY, str(step.seconds)], start_new_session=True)
                stack.callback(busy.wait)
                stack.callback(busy.kill)
            time.sleep(step.seconds)

    def lock_database(self, step: Step) -> None:
        """Whoever reads the rules has to wait."""
        with closing(sqlite3.connect(self._given["database"], isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            time.sleep(step.seconds)

    def lose_database(self, step: Step) -> None:
        """It is not there, and then the same as before."""
        path = Path(self._given["database"])
        away = path.rename(path.with_name("away"))
        time.sleep(step.seconds)
        away.rename(path)

    def rest(self) -> dict[str, int]:
        """All stop calling; the slots that they hold."""
        for one in self.alive:
            one.tell("rest")
        held = dict.fromkeys(LIMITS, 0)
        for one in self.alive:
            for name, number in json.loads(one.hear()).items():
                held[name] += number
        return held

    def grown(self) -> list[dict[str, Any]]:
        """What each process says of its memory, threads and files."""
        for one in self.alive:
            one.tell("measure")
        return [json.loads(one.hear()) for one in self.alive]

    def end(self) -> None:
        for one in self.alive:
            one.tell("end")
        for one in self.alive:
            assert one.hear() == "ended"

    def _start(self, number: int) -> Process:
        one = Process({**self._given, "process": number})
        self._stack.callback(one.close)
        return one

    @staticmethod
    def _ready(one: Process) -> None:
        assert one.hear() == "ready", f"process {one.number} did not start"


def play(this: Round) -> History:
    """Play it and gather what happened."""
    with stage(this.server) as servers, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="throttle-campaign-")))
        shutil.copy(prepared(), folder / DATABASE)
        crowd = Crowd(stack, this, servers.url, folder, folder / DATABASE)
        server = servers.version if this.server in ("Redis", "Valkey") else f"{this.server}, {servers.version}"
        begin = time.monotonic()
        faults = load(this, servers, crowd, begin)
        servers.settle()
        truly = crowd.rest()
        held = slots(servers, truly)
        operations, odd = read(folder, begin)
        killed = {number: at - begin for number, at in crowd.killed.items()}
        history = History(operations, faults, PROCESSES, killed, held=held, server=server)
        history.counted = _counted(servers, history)
        history.log = servers.log()
        crowd.end()
        freed = slots(servers, dict.fromkeys(held, 0))
        history.immortal = [key for server in servers.servers() for key in immortal_keys(server)]
        odd += [f"{name}: {counts} slots are left when all have ended" for name, (counts, _) in freed.items() if counts]
        history.odd = odd
    return history


def load(this: Round, servers: Stage, crowd: Crowd, begin: float) -> list[Fault]:
    """Clients call and both lists of faults are played, until the time is over."""
    found: list[Fault] = []
    errors: list[Exception] = []

    def follow(steps: list[Step], act: Callable[[Step], list[Fault]]) -> None:
        try:
            for step in steps:
                time.sleep(max(0.0, begin + step.at - time.monotonic()))
                found.extend(act(step))
        except Exception as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    def meddle(step: Step) -> list[Fault]:
        since = time.monotonic()
        getattr(crowd, step.name.replace(" ", "_"))(step)
        return [Fault(since, time.monotonic(), step.name)]

    of_servers, of_clients = this.faults()
    threads = [
        threading.Thread(target=follow, args=(of_servers, servers.play)),
        threading.Thread(target=follow, args=(of_clients, meddle)),
    ]
    crowd.go()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(max(0.0, begin + LOAD_SECONDS - time.monotonic()))
    for error in errors:
        raise error
    return sorted(fault.later(-begin) for fault in found)


def _used(rule: Rule, ident: str, servers: Stage) -> int | None:
    """What the server has counted; None while it does not say."""
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
    """What tallies have come to, once all is in them that must be, or after a while."""
    found: dict[str, int] = {}
    until = time.monotonic() + QUIET
    lost = any(fault.losses for fault in history.faults)
    for name, limit in LIMITS.items():
        if limit.kind in ("tally", "local tally"):
            least = 0 if lost else surely_counted(history, limit)
            while (used := _used(limit.rule, limit.ident, servers)) is None or used < least:
                if used is not None and time.monotonic() > until:
                    break
                time.sleep(0.1)
            found[name] = used
    return found


@cache
def prepared(**given: Any) -> Path:
    """A database with our tables in it, and Django's settings for this process' own questions."""
    folder = Path(tempfile.mkdtemp(prefix="throttle-campaign-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / DATABASE)}
    settings.configure(
        SECRET_KEY="campaign",
        INSTALLED_APPS=["django_throttle"],
        DATABASES={"default": database},
        DJANGO_THROTTLE={**SETTINGS, "AGENT": False, **given},
        USE_TZ=True,
    )
    django.setup()
    call_command("migrate", verbosity=0)
    connection.close()
    return folder / DATABASE
