"""The migrations make the tables, wherever they come from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
