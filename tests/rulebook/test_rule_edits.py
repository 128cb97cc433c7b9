"""An edit of a rule, seen by other processes: after its commit, and within a second of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from django_throttle.stores import RedisStore
from tests.servers import slack

ROOT = Path(__file__).parents[2]
# Says when it sees another rate, by its own clock, which is the same one.
WATCHER = """
import sys, time, django
django.setup()
from django_throttle import agent, rulebook
from django_throttle.stores import get_store
agent.ensure(get_store(), rules=True)
seen = object()
while True:
    rule = rulebook.current().by_name("api")
    rate = str(rule.rate) if rule else "none"
    if rate != seen:
        seen = rate
        print(time.time(), rate, flush=True)
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
def environment(database: str, redis_url: str) -> dict[str, str]:
    found = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "testproject.settings",
        "PYTHONPATH": str(ROOT),
        "DATABASE": database,
        "REDIS_URL": redis_url,
    }
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


def edit(writer: Process, rate: str, while_open: Callable[[], None]) -> tuple[float, float]:
    """Edit in a transaction; returns when its commit began and when it was over."""
    writer.say(rate)
    assert writer.hear() == "saved"
    while_open()
    writer.say("")
    began = float(writer.hear())
    assert writer.hear() == "committed"
    return began, time.time()


@pytest.mark.row("F59")
@pytest.mark.parametrize("with_redis", [True, False], ids=["redis", "memory"])
def test_it_is_seen_after_its_commit_and_within_a_second(
    start: Callable[..., Process],
    redis_url: str,
    with_redis: bool,
    figure: Callable[..., None],
) -> None:
    more = {} if with_redis else {"REDIS_URL": ""}
    watchers = [start(WATCHER, **more) for _ in range(2)]
    writer = start(WRITER, **more)
    store = RedisStore(redis_url, deadline=5.0)

    def provoke() -> None:
        # Everyone reads again while the edit is saved and not committed; nobody may see it.
        store.call("publish_rules", [store.process_key("rules")], ["provoked", 60_000])
        time.sleep(0.8)

    for watcher in watchers:
        watcher.hear()
    delays = []
    for rate in ("7/s", "8/s"):
        began, _over = edit(writer, rate, provoke)
        for watcher in watchers:
            at, seen = watcher.hear().split()
            assert seen == rate
            assert float(at) >= began
            delays.append(float(at) - began)
    for number in range(100, 130):
        began, _over = edit(writer, f"{number}/s", lambda: None)
    for watcher in watchers:
        while (heard := watcher.hear().split())[1] != "129/s":
            pass
        delays.append(float(heard[0]) - began)
    for delay in delays:
        figure("in force after", delay, "s")
    assert max(delays) < slack(1.0)
