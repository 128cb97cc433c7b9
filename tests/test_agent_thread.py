"""Jobs of the background thread: each in its own time, whatever the others do."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest

from django_throttle import agent_thread
from django_throttle.agent_thread import AgentThread
from tests.servers import slack, wait_until


def agent_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "django_throttle agent"]


@pytest.fixture
def running() -> Iterator[AgentThread]:
    running = AgentThread()
    yield running
    running.stop()


def test_does_each_job_in_its_own_time(running: AgentThread) -> None:
    often: list[float] = []
    seldom: list[float] = []
    running.every(0.02, lambda: often.append(time.monotonic()), "often")
    running.every(60, lambda: seldom.append(time.monotonic()), "seldom", wait=60)
    running.start()
    wait_until(lambda: len(often) >= 5, timeout=slack(1))
    assert seldom == []


def test_a_failing_job_is_logged_once_a_minute_and_ends_nothing(
    running: AgentThread, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[int] = []

    def fail() -> None:
        done.append(1)
        raise ValueError("on purpose")

    running.every(0.01, fail, "the failing job")
    with caplog.at_level(logging.WARNING, logger="django_throttle"):
        running.start()
        wait_until(lambda: len(done) >= 5, timeout=slack(1))
    assert [record.message for record in caplog.records] == [
        "the failing job failed, trying again: ValueError: on purpose"
    ]


def test_a_failed_job_is_tried_again_soon(running: AgentThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_thread, "RETRY_SECONDS", 0.05)
    done: list[int] = []

    def fail() -> None:
        done.append(1)
        raise ValueError

    running.every(60, fail, "the failing job")
    running.start()
    wait_until(lambda: len(done) >= 3, timeout=slack(1))


def test_one_thread_however_often_it_is_started(running: AgentThread) -> None:
    for _ in range(5):
        running.start()
    assert len(agent_threads()) == 1
    running.stop()
    assert agent_threads() == []
