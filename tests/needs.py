"""Markers by need: which parts of the machine a test needs, taken from its fixtures.

``redis`` uses the Redis of the run, ``servers`` starts processes, ``browser`` drives Chromium, and ``timing`` bounds
a time. A test without a marker is pure: it starts no process, opens no connection and does not sleep. An audit hook
watches for that, and a test that does more than its fixtures say fails with the name of the fixture to ask for.
"""

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

#: The fixture that stands for each marker.
FIXTURES = {"redis": "redis_server", "servers": "servers", "browser": "browser", "timing": "stopwatch"}
#: Audit events, and the markers of which a test needs one to cause them.
EVENTS = {
    "subprocess.Popen": {"servers", "browser"}, "os.fork": {"servers", "browser"},
    "os.posix_spawn": {"servers", "browser"}, "socket.connect": {"redis", "servers", "browser"},
    "time.sleep": {"redis", "servers", "browser", "timing"},
}  # fmt: skip


#: Seconds that a rule may delay a call in any test; only Python 3.13 tells of sleeping.
MOMENT = 0.05


class Watch:
    """The needs of the test that runs now, and the audit events that they do not cover."""

    def __init__(self) -> None:
        self.needs: set[str] | None = None
        self.uncovered: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.needs is None or event not in EVENTS or self.needs & EVENTS[event]:
            return
        if event == "socket.connect" and (arguments[0].family == socket.AF_UNIX or os.environ.get("DATABASE")):
            return  # the driver of MariaDB connects in Python
        is_in_thread = threading.current_thread() is not threading.main_thread()
        if event == "time.sleep" and (is_in_thread or arguments[0] <= MOMENT):
            return
        self.uncovered.append(f"{event}: ask for the fixture of {' or '.join(sorted(EVENTS[event]))}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Allow everything, for the fixtures of the whole run."""
        needs, self.needs = self.needs, None
        try:
            yield
        finally:
            self.needs = needs


watch = Watch()


def pytest_configure(config: pytest.Config) -> None:
    sys.addaudithook(watch)
    config.addinivalue_line("markers", "redis: uses the Redis of the run (set by fixtures)")
    config.addinivalue_line("markers", "servers: starts servers or other processes (set by fixtures)")
    config.addinivalue_line("markers", "browser: drives Chromium (set by fixtures)")
    config.addinivalue_line("markers", "timing: bounds a time, so runs alone (set by fixtures)")
    config.addinivalue_line("markers", "smoke: the one test of a kind of server that `make test` runs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
        for marker, fixture in FIXTURES.items():
            if fixture in fixtures or (marker == "redis" and "redis" in parameters):
                item.add_marker(marker)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    watch.needs = {marker for marker in FIXTURES if item.get_closest_marker(marker)}
    watch.uncovered.clear()
    try:
        return (yield)
    finally:
        watch.needs = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    outcome = yield
    if watch.uncovered:
        pytest.fail("; ".join(sorted(set(watch.uncovered))), pytrace=False)
    return outcome


@pytest.fixture(scope="session")
def servers() -> None:
    """Permission to start servers and other processes; fixtures that start some ask for it."""
