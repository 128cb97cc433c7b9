"""Rows that were there before an update are the same rules after it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from django_throttle.core import Rule
from django_throttle.models import ThrottleRule

APP = "django_throttle"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def first(transactional_db: None) -> Iterator[Any]:
    """The table of rules as the first migration makes it."""
    executor = MigrationExecutor(connection)
    executor.migrate([(APP, "0001_initial")])
    yield executor.loader.project_state([(APP, "0001_initial")]).apps.get_model(APP, "ThrottleRule")
    call_command("migrate", verbosity=0)


def test_rows_of_the_first_table_are_the_same_rules(first: Any) -> None:
    first.objects.create(name="api", rate="100/min", cost=3, key="ip")
    first.objects.create(name="sockets", limit=5, algorithm="concurrency", events=("connection",))
    first.objects.create(name="queue", rate="5/s", algorithm="leaky_bucket", action="delay", max_delay=2)
    call_command("migrate", verbosity=0)
    assert {row.name: row.as_rule() for row in ThrottleRule.objects.all()} == {
        "api": Rule("api", "100/min", cost=3, key="ip"),
        "sockets": Rule("sockets", limit=5, algorithm="concurrency", events=("connection", "inflight")),
        "queue": Rule("queue", "5/s", algorithm="leaky_bucket", action="delay", max_delay=2.0),
    }


def test_there_is_a_way_back(first: Any) -> None:
    call_command("migrate", verbosity=0)
    ThrottleRule.objects.create(name="api", rate="100/min", cost=3, methods=("POST",))
    call_command("migrate", APP, "0001", verbosity=0)
    assert first.objects.get().cost == 3


def at(name: str) -> Any:
    """The table of rules as this migration leaves it."""
    executor = MigrationExecutor(connection)
    executor.migrate([(APP, name)])
    return executor.loader.project_state([(APP, name)]).apps.get_model(APP, "ThrottleRule")


def test_what_counted_sockets_and_requests_as_one_event_goes_on_doing_so(transactional_db: None) -> None:
    held = {"limit": 5, "algorithm": "concurrency"}
    try:
        before = at("0008_connections")
        before.objects.create(name="tabs", **held, events=("connection",), at_limit="evict_idle")
        before.objects.create(name="uploads", **held, events=("connection",), methods=("POST",), at_limit="evict_idle")
        before.objects.create(name="knocks", rate="5/s", events=("connect", "message"))
        call_command("migrate", verbosity=0)
        assert {row.name: row.as_rule() for row in ThrottleRule.objects.all()} == {
            "tabs": Rule("tabs", **held, events=("connection", "inflight"), at_limit="evict_idle"),
            "uploads": Rule("uploads", **held, events=("inflight",), methods=("POST",)),
            "knocks": Rule("knocks", "5/s", events=("connect", "message")),
        }
        assert [row.events for row in at("0008_connections").objects.order_by("name")] == [
            ("connect", "message"), ("connection",), ("connection",),
        ]  # fmt: skip
    finally:
        call_command("migrate", verbosity=0)


@pytest.mark.row("F57")
def test_the_command_works_on_an_empty_database_and_nothing_is_asked_of_it_before(database: str) -> None:
    """Its system checks included; Django warns of whoever asks the database while applications are loaded."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "testproject.settings", "DATABASE": database}
    line = [sys.executable, "-W", "error::RuntimeWarning", "-m", "django", "migrate"]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
