"""An override made in one process, seen by another: within a second of its commit, and gone at its moment by itself."""

from __future__ import annotations

from collections.abc import Callable

from tests.rulebook.test_rule_edits import Process, environment, start
from tests.servers import slack

__all__ = ["environment", "start"]  # fixtures

# Says when something else holds for user 1, by its own clock, which is the same one.
WATCHER = """
import time, django
django.setup()
from django.db import connection
from django_throttle import agent, rulebook
from django_throttle.stores import get_store
class User:
    subject = None
    def ident(self, key):
        return "user:1" if key == "user" else None
    def is_(self, trait):
        return False
agent.ensure(get_store(), rules=True)
seen = None
while True:
    held = ",".join(override.effect for override in rulebook.current().overrides.of(User())) or "nothing"
    if held != seen:
        seen = held
        print(time.time(), held, flush=True)
    time.sleep(0.002)
"""
# For each line that it is given: an override that lasts for so many seconds, or the end of all.
WRITER = """
import sys, time, datetime, django
django.setup()
from django.utils import timezone
from django_throttle.models import ThrottleOverride
for line in sys.stdin:
    if line.strip() == "end":
        ThrottleOverride.objects.update(until=timezone.now())
        print(time.time(), flush=True)
        continue
    until = timezone.now() + datetime.timedelta(seconds=float(line))
    ThrottleOverride.objects.create(kind="user", value="1", effect="exempt", reason="test", until=until)
    print(time.time(), until.timestamp(), flush=True)
"""


def test_it_is_in_force_within_a_second_and_ends_by_itself(start: Callable[..., Process], stopwatch: object) -> None:
    watcher, writer = start(WATCHER), start(WRITER)
    assert watcher.hear().endswith("nothing")

    def seen(effect: str) -> float:
        at, held = watcher.hear().split()
        assert held == effect
        return float(at)

    writer.say("1.5")
    made, until = map(float, writer.hear().split())
    delays = [seen("exempt") - made]
    late = seen("nothing") - until  # nobody edits anything
    writer.say("600")
    made = float(writer.hear().split()[0])
    delays.append(seen("exempt") - made)
    writer.say("end")
    ended = float(writer.hear())
    delays.append(seen("nothing") - ended)
    assert max(delays) < slack(1.0)
    assert 0 <= late < slack(0.25)
