"""Deferred calls that a real worker runs: once, in order, never early, at the rate; longer by ``make deferring``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers import slack

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("queue", ["django", "celery"])
@pytest.mark.parametrize("kill", [False, True], ids=["whole", "killed"])
def test_calls_run_once_in_order_not_early_and_at_the_rate(queue: str, kill: bool) -> None:
    """Under Celery, when its worker was killed, at least once and not early."""
    given = ["--calls", "100", "--rate", "20", "--queue", queue, *(["--kill"] if kill else [])]
    command = [sys.executable, "-m", "tests.deferring", *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    print(done.stdout, done.stderr[-2000:])
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert [figures["lost"], figures["early"]] == [0, 0]
    if not (kill and queue == "celery"):
        # A task whose worker is killed between its work and its note of that has run, and runs again.
        assert figures["twice"] <= figures["cut off and run again"] <= kill and figures["out of order"] == 0
        assert figures["rate"] == pytest.approx(20, rel=slack(0.1))
    assert done.returncode == 0
