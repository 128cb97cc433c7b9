"""Edits of rules and overrides, seen by other processes, and processes that start while their database hangs."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import pytest

from django_throttle.stores import RedisStore
from testproject.check.standstill import elapsed
from tests.http.servers import Server, Visit
from tests.servers import RedisServer, slack, wait_until

ROOT = Path(__file__).parents[2]
# Says when it has read the rules, and when it sees another rate, or another override of user 1, by the clock of all.
WATCHER = """
import time, django
django.setup()
from django_throttle import agent, rulebook
from django_throttle.rulebook import sources
from django_throttle.stores import get_store
from tests.callers import Caller
reading = sources.from_database
def read(before):
    found = reading(before)
    print(time.time(), "read", flush=True)
    return found
sources.from_database = read
agent.ensure(get_store(), rules=True)
seen = None
while True:
    now = rulebook.current()
    rule, held = now.by_name("api"), [override.effect for override in now.overrides.of(Caller(user="user:1"))]
    if (found := (str(rule.rate) if rule else "none", *held)) != seen:
        seen = found
        print(time.time(), *seen, flush=True)
    time.sleep(0.002)
"""
# For each line that it is given: an edit inside a transaction, which it commits on the next line.
WRITER = """
import sys, time, django
django.setup()
from django.db import transaction
from django_throttle.models import ThrottleRule
for line in sys.stdin:
    with transaction.atomic():
        ThrottleRule.objects.update_or_create(name="api", defaults={"rate": line.strip()})
        print("saved", flush=True)
        sys.stdin.readline()
        print(time.time(), flush=True)
    print("committed", flush=True)
"""


class Process:
    """A Python process with the demo site's settings, talked to line by line."""

    def __init__(self, code: str, environment: dict[str, str]) -> None:
        pipe, command = subprocess.PIPE, [sys.executable, "-c", code]
        self.process = subprocess.Popen(command, env=environment, cwd=ROOT, text=True, stdin=pipe, stdout=pipe)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "the process has ended"
        return line

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def environment(servers: None, database: str, redis_url: str) -> dict[str, str]:
    settings = {"DJANGO_SETTINGS_MODULE": "testproject.settings", "DATABASE": database, "REDIS_URL": redis_url}
    found = {**os.environ, "PYTHONPATH": str(ROOT), **settings}
    migrate = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
    subprocess.run(migrate, env=found, cwd=ROOT, check=True)
    return found


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Callable[..., Process]]:
    running: list[Process] = []

    def start(code: str, **more: str) -> Process:
        running.append(Process(code, {**environment, **more}))
        return running[-1]

    yield start
    for process in running:
        process.end()


def hear_change(watcher: Process) -> tuple[float, str]:
    """Return when a watcher saw its next change, and the rate or the override that it saw."""
    while (line := watcher.hear().split())[1] == "read":
        pass
    return float(line[0]), line[-1]


def edit(writer: Process, rate: str, *watchers: Process) -> float:
    """Edit in a transaction, which is committed once all watchers have read the rules; return when that began."""
    writer.say(rate)
    assert writer.hear() == "saved"
    for watcher in watchers:
        assert watcher.hear().endswith(" read"), "nobody sees it yet"
    writer.say("")
    began = float(writer.hear())
    assert writer.hear() == "committed"
    return began


@pytest.mark.row("F59")
@pytest.mark.usefixtures("stopwatch")
@pytest.mark.parametrize("with_redis", [True, False], ids=["redis", "memory"])
@pytest.mark.row("R01")
def test_it_is_seen_after_its_commit_and_within_a_second(
    start: Callable[..., Process], redis_url: str, with_redis: bool, figure: Callable[..., None]
) -> None:
    more = {} if with_redis else {"REDIS_URL": ""}
    watchers = [start(WATCHER, **more) for _ in range(2)]
    writer = start(WRITER, **more)
    store = RedisStore(redis_url, deadline=5.0)
    for watcher in watchers:
        hear_change(watcher)
    delays = []
    for rate in ("7/s", "8/s"):
        store.call("publish_rules", [store.process_key("rules")], ["provoked", 60_000])  # all read again
        began = edit(writer, rate, *watchers)
        for watcher in watchers:
            at, seen = hear_change(watcher)
            assert seen == rate
            delays.append(at - began)
    for number in range(100, 130):
        began = edit(writer, f"{number}/s")
    for watcher in watchers:
        while (heard := hear_change(watcher))[1] != "129/s":
            pass
        delays.append(heard[0] - began)
    for delay in delays:
        figure("in force after", delay, "s")
    assert 0 <= min(delays) <= max(delays) < slack(1.25)  # a poll each second, and the reading


OWN = {"DJANGO_SETTINGS_MODULE": "testproject.settings", "PYTHONPATH": str(ROOT)}
# In settings five calls are allowed; an operator has made two of them.
RULES = {"api": {"rate": "5/h", "key": "ip", "scopes": ["middleware"]}}
ROW = {**RULES["api"], "rate": "2/h"}
MAKE = f"""
import django
django.setup()
from django.core.management import call_command
from django_throttle.models import ThrottleRule
call_command("migrate", "django_throttle", verbosity=0)
ThrottleRule.objects.create(name="api", **{ROW!r})
"""


class Database(NamedTuple):
    """One with the operator's rule; ``hang`` has nobody answered until ``free``."""

    hang: Callable[[], object]
    free: Callable[[], object]


@pytest.fixture
def slow_database(servers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A SQLite file in which another process writes, and takes its time."""
    file = str(tmp_path / "db.sqlite3")
    monkeypatch.setenv("DATABASE", file)
    subprocess.run([sys.executable, "-c", MAKE], env={**os.environ, **OWN}, cwd=ROOT, check=True)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:

        def hang() -> None:
            other.execute("PRAGMA journal_mode=DELETE")  # with a write-ahead log others could read
            other.execute("BEGIN EXCLUSIVE")

        yield Database(hang, lambda: other.execute("ROLLBACK"))


@pytest.mark.row("F56")
@pytest.mark.usefixtures("redis_url")
@pytest.mark.parametrize("kind", ["uvicorn-h11", "gunicorn"])
def test_it_answers_by_the_rules_of_settings_until_the_database_has_said_others(
    slow_database: Database, kind: str, redis_server: RedisServer, figure: Callable[..., None]
) -> None:
    """The first requests wait one deadline for a database that says nothing before they have all been answered."""
    slow_database.hang()
    with Server(kind, redis_server, RULES, DATABASE_RULES=True, DEADLINE=0.5) as server:
        began = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            statuses = list(
                pool.map(lambda where: ask(server, where), ["/middleware/quick/one"] * 7 + ["/free/quick/one"])
            )
        figure("longest answer, with a deadline of 0.5 s,", elapsed(began), "s")
        assert (statuses[-1], Counter(statuses)) == (200, {200: 6, 429: 2})
        slow_database.free()
        wait_until(lambda: is_said(server, ";q=2;w=3600"), timeout=slack(10), every=0.1)
    (line,) = [line for line in server.log.read_text().splitlines() if "the database has not answered" in line]
    assert "only the rules in settings hold" in line


def ask(server: Server, where: str) -> int:
    with Visit(server, where) as visit:
        (status,) = visit.statuses()
    return int(status)


def is_said(server: Server, limit: str) -> bool:
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.request("GET", "/middleware/quick/one")
        return limit in (connection.getresponse().headers["RateLimit-Policy"] or "")
