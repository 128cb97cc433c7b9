"""The rules in settings have lines when they change: once, whichever process sees it first."""

from __future__ import annotations

import subprocess
import sys
from threading import Barrier, Thread

import pytest
from django.db import connection, connections

from django_throttle import history
from django_throttle.core import Rule
from django_throttle.history.from_settings import tell_settings
from django_throttle.models import ThrottleChange

pytestmark = pytest.mark.django_db
START = """
import django, time
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django_throttle import rulebook
from django_throttle.models import ThrottleChange
rulebook.current()
ends = time.monotonic() + 20
while not ThrottleChange.objects.exists() and time.monotonic() < ends:
    time.sleep(0.01)
print(list(ThrottleChange.objects.values_list("kind", "name", "who")))
"""


def tell(**rates: str) -> bool:
    return tell_settings({name: Rule(name, rate) for name, rate in rates.items()}, "default")


def test_each_rule_that_changed_has_a_line_and_what_stays_has_none() -> None:
    assert tell(api="5/min", site="9/min")
    assert not tell(api="5/min", site="9/min")
    ThrottleChange.objects.exclude(kind="settings").delete()
    assert tell(api="7/min", new="1/s")
    lines = ThrottleChange.objects.order_by("pk").values_list("kind", "name", "action", "words", "who", "via")[1:]
    assert list(lines) == [
        ("settings", "", "changed", "RULES: 1 added, 1 changed, 1 removed", "settings", "settings"),
        ("rule", "api", "changed", "rate: 5/min → 7/min", "settings", "settings"),
        ("rule", "site", "removed", "no longer in settings", "settings", "settings"),
        ("rule", "new", "added", "each user or address: 1 request per second", "settings", "settings"),
    ]
    assert not any(map(history.is_revertible, ThrottleChange.objects.all()))
    assert {line.by for line in ThrottleChange.objects.all()} == {"settings"}


def test_rules_that_come_back_have_lines_again() -> None:
    assert [tell(api="5/min"), tell(api="7/min"), tell(api="5/min")] == [True] * 3


def test_no_rules_at_all_have_no_line() -> None:
    assert not tell()
    assert tell(api="5/min")
    assert tell()


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="threads share a database only on a server")
def test_processes_that_see_it_at_once_write_it_once() -> None:
    ready = Barrier(4)

    def see() -> None:
        ready.wait()
        tell(api="5/min")
        connections.close_all()

    threads = [Thread(target=see) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ThrottleChange.objects.count() == 2


@pytest.mark.usefixtures("servers")
def test_a_process_that_starts_tells_them(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE", database)
    monkeypatch.setenv("RULES", '{"api": {"rate": "5/min"}}')
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.editing")
    for _ in range(2):  # the second start adds none
        done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout.strip() == "[('rule', 'api', 'settings'), ('settings', '', 'settings')]", done.stderr
