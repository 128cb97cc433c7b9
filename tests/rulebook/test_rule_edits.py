"""Edits of rules are seen by other processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers import slack

ROOT = Path(__file__).parents[2]
# Says when it sees another rate, by the clock of all.
WATCHER = """
import time, django
django.setup()
from django_throttle import agent, rulebook
from django_throttle.stores import get_store
agent.ensure(get_store(), rules=True)
seen = None
while True:
    rule = rulebook.current().by_name("api")
    if (found := str(rule.rate)) != seen:
        seen = found
        print(time.time(), seen, flush=True)
    time.sleep(0.002)
"""
# For each line that it is given: an edit, and when its transaction was about to be committed.
WRITER = """
import sys, time, django
django.setup()
from django.db import transaction
from django_throttle.models import ThrottleRule
for line in sys.stdin:
    with transaction.atomic():
        ThrottleRule.objects.update_or_create(name="api", defaults={"rate": line.strip()})
        began = time.time()
    print(began, flush=True)
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


@pytest.mark.row("F59")
@pytest.mark.row("R01")
@pytest.mark.usefixtures("stopwatch")
@pytest.mark.parametrize("with_redis", [True, False], ids=["redis", "memory"])
def test_it_is_seen_after_its_commit_and_within_a_second(
    start: Callable[..., Process], with_redis: bool, figure: Callable[..., None]
) -> None:
    more = {} if with_redis else {"REDIS_URL": ""}
    watchers = [start(WATCHER, **more) for _ in range(2)]
    writer = start(WRITER, **more)
    for watcher in watchers:
        watcher.hear()
    delays = []
    for rates in (["7/s"], ["8/s"], [f"{number}/s" for number in range(100, 130)]):
        for rate in rates:
            writer.say(rate)
            began = float(writer.hear())
        for watcher in watchers:
            while (heard := watcher.hear().split())[1] != rates[-1]:
                assert heard[1] in rates
            delays.append(float(heard[0]) - began)
    for delay in delays:
        figure("in force after", delay, "s")
    assert 0 <= min(delays) <= max(delays) < slack(1.25)  # a poll each second, and the reading
