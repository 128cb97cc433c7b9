"""One migration makes the tables, wherever they come from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

APP = "django_throttle"
ROOT = Path(__file__).parents[2]


@pytest.mark.row("F57")
def test_the_command_works_on_an_empty_database_and_nothing_is_asked_of_it_before(database: str) -> None:
    """Its system checks included; Django warns of whoever asks the database while applications are loaded."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "testproject.settings", "DATABASE": database}
    line = [sys.executable, "-W", "error::RuntimeWarning", "-m", "django", "migrate"]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_whoever_ran_a_checkout_goes_on(db: None) -> None:
    recorder = MigrationRecorder(connection)
    for name in ("0002_rule_options", "0016_history", "0017_candidates"):
        recorder.record_applied("django_throttle", name)
    call_command("migrate", "django_throttle", prune=True, verbosity=0)
    left = {name for label, name in recorder.applied_migrations() if label == "django_throttle"}
    assert left == {"0001_initial", "0002_plans"}
