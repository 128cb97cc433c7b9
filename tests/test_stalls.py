"""What the machine loses is not ours: a standstill is noticed, taken off, and its victims get another chance."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testproject.check.standstill import EVERY, STILL, Watch
from tests.clock import FrozenClock

ROOT = Path(__file__).parents[1]
HOOKS = "from tests.stalls import pytest_runtest_protocol, pytest_terminal_summary"
# Run by a pytest of its own: a failure after a standstill, one without any, one that comes again and again.
VICTIMS = """
import os, subprocess, sys, time

STOP = "import os, signal, time; p = {pid}; os.kill(p, 19); time.sleep(0.3); os.kill(p, 18)"
runs = dict(victim=0, culprit=0, hopeless=0)

def stand_still():
    began = time.monotonic()
    subprocess.Popen([sys.executable, "-c", STOP.format(pid=os.getpid())]).wait()
    assert time.monotonic() - began > 0.3

def test_victim():
    runs["victim"] += 1
    if runs["victim"] == 1:
        stand_still()
        raise AssertionError("late")

def test_culprit():
    runs["culprit"] += 1
    raise AssertionError("wrong")

def test_hopeless():
    runs["hopeless"] += 1
    stand_still()
    raise AssertionError("wrong")

def test_counts():
    assert runs == dict(victim=2, culprit=1, hopeless=3)
"""


@pytest.fixture
def watch(clock: FrozenClock) -> Watch:
    """One that looks when it is told to, at a clock that goes when it is told to."""
    return Watch(clock)


def test_a_late_turn_is_a_standstill(watch: Watch, clock: FrozenClock) -> None:
    began = clock()
    for gap in (EVERY, EVERY + STILL, 0.3, EVERY):
        clock.step(gap)
        watch.look()
    assert watch.still_since(began) == pytest.approx(0.3)


def test_only_what_comes_after_the_moment_counts(watch: Watch, clock: FrozenClock) -> None:
    clock.step(0.2)
    watch.look()
    middle = clock()
    clock.step(0.3)
    watch.look()
    assert watch.still_since(middle - 0.1) == pytest.approx(0.4)
    assert watch.still_since(middle) == pytest.approx(0.3)
    assert watch.still_since(clock()) == 0


def test_a_failure_counts_unless_the_machine_stood_still(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "conftest.py").write_text(HOOKS, encoding="utf-8")
    (tmp_path / "test_victims.py").write_text(VICTIMS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:django", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert "2 failed, 2 passed" in ran.stdout, ran.stdout + ran.stderr
    failed = {line.rpartition("::")[2].split()[0] for line in ran.stdout.splitlines() if line.startswith("FAILED ")}
    assert failed == {"test_culprit", "test_hopeless"}
    told = ran.stdout.partition("failed while the machine stood still, and run again")[2]
    assert told.count("::test_victim: 0.") == 1 and told.count("::test_hopeless: 0.") == 2
