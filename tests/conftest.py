"""What every test may ask for: a real Redis, a clean database of it, and no background thread."""

import gc
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from django_throttle import agent, pytest_plugin
from django_throttle.agent import jobs
from testproject.check.standstill import watch
from tests import servers
from tests.clock import FrozenClock
from tests.crew import begin_nothing
from tests.databases import new_database
from tests.doors import build, enforcer
from tests.servers import RedisServer, Stopwatch

enforce = pytest.fixture(enforcer)
each_store = pytest.fixture(params=["memory", "redis"])(build)
pytest_plugins = ["tests.needs", "tests.browser"]

# A slow machine is no failure; where CI is set, every run draws the same examples.
CALM = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
hypothesis_settings.register_profile("calm", derandomize="CI" in os.environ, max_examples=25, **CALM)
hypothesis_settings.register_profile("nightly", max_examples=1000, **CALM)
hypothesis_settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "calm"))


def pytest_configure(config: pytest.Config) -> None:
    watch.start()
    config.addinivalue_line("markers", "agent: the background thread may run in this test")
    config.addinivalue_line("markers", "row(*ids): shows what these rows of tests/faults/rows.toml promise")
    if not config.pluginmanager.hasplugin("django_throttle"):  # not installed, only on the path
        config.pluginmanager.register(pytest_plugin, "django_throttle")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Reports name the rows of a test, see tests/faults/rows.py; of several processes none is left with a long file.

    A file of few tests is one of long tests, which wait for servers and clocks: those files begin first.
    """
    for item in items:
        item.user_properties += [("row", row) for mark in item.iter_markers("row") for row in mark.args]
    if "PYTEST_XDIST_WORKER" in os.environ:
        tests = Counter(item.path for item in items)
        items.sort(key=lambda item: tests[item.path])
    items.sort(key=lambda item: "browser" in getattr(item, "fixturenames", ()))  # see the fixture


def pytest_collection_finish() -> None:
    """Leave what collecting has made out of every later collection of garbage: there are thousands of tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``figure("longest call", 101.2, "ms")``: what a test measured, for the table of docs/reference/faults.rst."""
    told = request.node.user_properties
    told[:] = [one for one in told if one[0] != "figure"]  # of an attempt that is being repeated

    def figure(label: str, value: float, unit: str = "") -> None:
        print(f"{label} {value:.4g} {unit}".rstrip())
        told.append(("figure", json.dumps([label, value, unit])))

    return figure


@pytest.fixture(scope="session")
def need_binary() -> Callable[[str], str]:
    """The path of a program; skips without it, fails where CI is set."""
    return servers.need_binary


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for the whole run; a test that pauses or kills a server starts its own."""
    from tests.needs import watch as needs  # a plugin is imported by pytest first

    with needs.paused():
        server = RedisServer()
    with server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    """The address of an empty Redis; afterwards no key that we left may live for ever."""
    with redis_server.client() as client:
        client.flushall()
        yield redis_server.url
        assert immortal_keys(redis_server) == []


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The same; PostgreSQL drops no database while threads keep connections to it, as those of asgiref do."""
    yield
    if connection.vendor == "postgresql":
        with django_db_blocker.unblock(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


@pytest.fixture
def stopwatch() -> type[Stopwatch]:
    """``with stopwatch(most=0.15): ...``: the block takes no longer than so many seconds; such tests run alone."""
    return Stopwatch


@pytest.fixture
def database(tmp_path: Path) -> Iterator[str]:
    """The address of an empty database that processes can share, of the kind that the suite runs on."""
    with new_database(tmp_path) as address:
        yield address


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(autouse=True)
def no_agent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The background thread is off, unless the test is marked ``agent``; none outlives its test."""
    if request.node.get_closest_marker("agent") is None:
        monkeypatch.setattr(jobs._StoreService, "begin", begin_nothing)
    yield
    agent.stop()


def immortal_keys(server: RedisServer) -> list[str]:
    """The keys without a TTL, of every prefix; a crash of everyone must leave nothing behind."""
    with server.client() as client:
        return [key for key in client.scan_iter(count=1000) if client.pttl(key) == -1]


@pytest.fixture(autouse=True)
def no_closing_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels closes old database connections before each event, and asks the database whether they are."""
    monkeypatch.setattr("channels.db.close_old_connections", lambda: None)
