"""A process that starts while its database hangs answers all the same, by the rules of settings, until it is back."""

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
from typing import Any, NamedTuple

import pytest

from testproject.check.standstill import elapsed
from tests.http.servers import Server, Visit
from tests.servers import RedisServer, slack, wait_until

ROOT = Path(__file__).parents[2]
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
# A hundred callers on one event loop, which goes on meanwhile; then what they got.
WAITING = """
import asyncio, django
from django.conf import settings
settings.DJANGO_THROTTLE = {"RULES_WAIT": True, "DEADLINE": 0.05}
django.setup()
from django.db.backends.signals import connection_created
from django_throttle import rulebook
made = []
connection_created.connect(lambda **_: made.append(1), weak=False)
async def main():
    found = asyncio.gather(*[rulebook.acurrent() for _ in range(100)])
    await asyncio.sleep(0.1)
    print("waiting" if not found.done() else "in force", flush=True)
    await asyncio.to_thread(input)
    print(*{str(one.by_name("api").rate) for one in await found}, len(made), flush=True)
asyncio.run(main())
"""


class Database(NamedTuple):
    """One with the operator's rule; ``hang`` has nobody answered until ``free``."""

    hang: Callable[[], object]
    free: Callable[[], object]


@pytest.fixture
def database(servers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
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
    database: Database, kind: str, redis_server: RedisServer, figure: Callable[..., None]
) -> None:
    """The first requests wait one deadline for a database that says nothing before they have all been answered."""
    database.hang()
    with Server(kind, redis_server, RULES, DATABASE_RULES=True, DEADLINE=0.5) as server:
        began = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            statuses = list(
                pool.map(lambda where: ask(server, where), ["/middleware/quick/one"] * 7 + ["/free/quick/one"])
            )
        figure("longest answer, with a deadline of 0.5 s,", elapsed(began), "s")
        assert (statuses[-1], Counter(statuses)) == (200, {200: 6, 429: 2})
        database.free()
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


@pytest.mark.row("F56")
def test_where_that_is_asked_for_it_waits_and_nothing_else_does(database: Database) -> None:
    database.hang()
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", WAITING], env={**os.environ, **OWN}, cwd=ROOT, **pipes) as process:
        try:
            assert process.stdout.readline() == "waiting\n"
            database.free()
            rates, connections = process.communicate("\n", timeout=30)[0].split()
        finally:
            process.kill()
    assert (rates, connections) == ("2/hour", "1")
