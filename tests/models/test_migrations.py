"""The migrations make the tables, wherever they come from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from django_throttle.models import ThrottleRule

APP = "django_throttle"
ROOT = Path(__file__).parents[2]


@pytest.mark.row("F57")
@pytest.mark.usefixtures("servers")
def test_the_command_works_on_an_empty_database_and_nothing_is_asked_of_it_before(database: str) -> None:
    """Its system checks included; Django warns of whoever asks the database while applications are loaded."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "testproject.settings", "DATABASE": database}
    line = [sys.executable, "-W", "error::RuntimeWarning", "-m", "django", "migrate"]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "former", [["0002_plans"], ["0002_rule_options", "0016_history", "0017_candidates", "0002_plans"]], ids=len
)
def test_whoever_ran_a_checkout_goes_on(db: None, former: list[str]) -> None:
    """The tables are those that the former migrations made; only their names are too many."""
    recorder = MigrationRecorder(connection)
    for name in former:
        recorder.record_applied(APP, name)
    call_command("migrate", APP, prune=True, verbosity=0)
    assert {name for label, name in recorder.applied_migrations() if label == APP} == {
        name for label, name in MigrationLoader(connection).disk_migrations if label == APP
    }
    executor = MigrationExecutor(connection)
    assert executor.migration_plan(executor.loader.graph.leaf_nodes()) == []
    ThrottleRule.objects.create(name="api", rate="100/min")
    assert ThrottleRule.objects.get().plans == ()
