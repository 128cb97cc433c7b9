"""The background thread: its jobs go on, whatever they do, and end when it is told."""

import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from redis import Redis

from django_throttle import agent
from django_throttle.agent.thread import AgentThread
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.runtime import shutdown
from django_throttle.stores import MemoryStore, RedisStore
from tests.forks import holds_in_child
from tests.servers import free_port, slack, wait_until

HELD = Rule("held", limit=5, algorithm="concurrency")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    agent.stop()
    wait_until(lambda: not agent_threads())


@pytest.mark.agent
@pytest.mark.usefixtures("servers")
def test_a_beat_that_fails_says_that_slots_are_given_back(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.DJANGO_THROTTLE = {"DATABASE_RULES": False, "PROCESS_TTL": 25.0}
    with caplog.at_level(logging.WARNING, logger="django_throttle"):
        agent.ensure(RedisStore(f"redis://127.0.0.1:{free_port()}/0", deadline=5.0))
        wait_until(lambda: "sending the beat failed" in caplog.text, timeout=slack(5))
    (line,) = [record.message for record in caplog.records if "sending the beat failed" in record.message]
    assert "after PROCESS_TTL (25 s) without a beat, other processes release the leases of this process" in line
    assert line.endswith("check that Redis answers")


@pytest.mark.agent
@pytest.mark.parametrize(("policy", "beats"), [("local", True), ("allow", False), ("deny", False)])
def test_a_limiter_of_rates_beats_where_it_may_have_to_share_the_limit(
    settings: Any, redis_url: str, policy: str, beats: bool
) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False, "PROCESS_TTL": 0.5}
    store = RedisStore(redis_url, deadline=5.0)
    assert not Limiter([Rule("api", "5/min", on_store_failure=policy)], store).acquire("user:1").degraded
    assert len(agent_threads()) == beats
    with Redis.from_url(redis_url) as client:
        wait_until(lambda: client.zcard("dt:{p}:live") == beats, timeout=slack(2))


@pytest.mark.agent
def test_a_thread_that_cannot_be_had_is_no_error(settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    settings.DJANGO_THROTTLE = {"STORE": "memory", "DATABASE_RULES": False}
    monkeypatch.setattr(agent.agents, "_not_before", 0.0)
    store, tries = MemoryStore(), []

    def refuse(thread: threading.Thread) -> None:
        tries.append(thread)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(5):
            agent.ensure(store, rules=True)
    assert len(tries) == len(caplog.records) == 1
    monkeypatch.setattr(agent.agents, "_not_before", 0.0)  # a while later
    agent.ensure(store, rules=True)
    assert len(agent_threads()) == 1


@pytest.mark.agent
def test_entry_points_add_jobs_to_a_running_thread_until_settings_change(settings: Any, redis_url: str) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False}
    store = RedisStore(redis_url, deadline=5.0)
    agent.ensure(store)
    (thread,) = agent_threads()
    agent.ensure(store, rules=True)
    assert agent_threads() == [thread]
    settings.DJANGO_THROTTLE = {"DATABASE_RULES": False}
    wait_until(lambda: not agent_threads())
    agent.stop_for(store)  # changes nothing


@pytest.mark.agent
def test_a_server_that_is_told_to_end_waits_for_nothing_of_ours(settings: Any, redis_url: str) -> None:
    """Its handler of SIGTERM ends the process without Python's own exit; a connection is held until it is closed."""
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False, "PROCESS_TTL": 0.5}
    server, store = uvicorn.Server(uvicorn.Config("site")), RedisStore(redis_url, deadline=5.0)
    before = signal.signal(signal.SIGTERM, server.handle_exit)
    try:
        limiter = Limiter([HELD], store)
        lease = limiter.acquire("user:1").lease
        with Redis.from_url(redis_url) as client:
            wait_until(lambda: client.zcard("dt:{p}:live") == 1)
            signal.raise_signal(signal.SIGTERM)
            assert server.should_exit and client.zcard("dt:{p}:live") == 1
            limiter.release(lease)
            wait_until(lambda: client.zcard("dt:{p}:live") == 0)
        wait_until(lambda: not agent_threads())
        agent.ensure(store)
        assert not agent_threads(), "nothing begins anew"
    finally:
        signal.signal(signal.SIGTERM, before)
        shutdown._renew()


@pytest.mark.agent
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("servers")
def test_a_forked_child_gets_its_own(settings: Any, redis_url: str) -> None:
    settings.DJANGO_THROTTLE = {"REDIS": redis_url, "DATABASE_RULES": False, "PROCESS_TTL": 0.5}
    store = RedisStore(redis_url, deadline=5.0)
    agent.ensure(store)
    wait_until(lambda: store.leases.is_introduced, timeout=slack(2))
    uid = store.leases.uid

    def begins_anew() -> bool:
        before = len(agent_threads())
        agent.ensure(store)
        wait_until(lambda: store.leases.is_introduced, timeout=slack(20))
        return (before, len(agent_threads())) == (0, 1) and store.leases.uid != uid

    assert holds_in_child(begins_anew)
    with store.transport.client as client:
        assert client.zcard("dt:{p}:live") == 2


def agent_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "django_throttle agent"]


@pytest.fixture
def running() -> Iterator[AgentThread]:
    running = AgentThread()
    yield running
    running.stop()


def test_a_failing_job_is_logged_once_a_minute_and_ends_nothing(running: AgentThread, caplog: Any) -> None:
    done: list[int] = []
    seldom: list[int] = []

    def fail() -> None:
        done.append(1)
        raise ValueError("on purpose")

    running.every(0.01, fail, "the failing job")
    running.every(60, lambda: seldom.append(1), "another job", wait=60)
    with caplog.at_level(logging.WARNING, logger="django_throttle"):
        running.start()
        wait_until(lambda: len(done) >= 5, timeout=slack(1))
    assert caplog.messages == ["the failing job failed, trying again: ValueError: on purpose"]
    assert seldom == [], "each has an interval of its own"
