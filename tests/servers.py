"""Real servers for tests: a Redis of our own, and (from ``tests.proxy``) a proxy that misbehaves when told to.

All of them listen on loopback, on a port that the system chose, and are ended by their own process id.
"""

from __future__ import annotations

import atexit
import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any, NoReturn, Self

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from testproject.check.standstill import elapsed
from testproject.services import find_redis, free_port
from tests.proxy import Proxy

__all__ = [
    "Proxy", "RedisServer", "Stopwatch", "find_redis", "free_port", "need_binary", "quickest", "slack", "wait_until",
]  # fmt: skip

REDIS_BINARIES = ("redis-server", "valkey-server")


def need_binary(name: str) -> str:
    """The path of a program; without it the test is skipped with its reason, or fails where CI is set."""
    found = find_redis() if name in REDIS_BINARIES else shutil.which(name)
    if found:
        return found
    _lacking(name)


def need_package(name: str) -> None:
    """Skip the test, or fail where CI is set, unless the Python package can be imported."""
    if find_spec(name) is None:
        _lacking(name)


def need_file(path: Path) -> None:
    """Skip the test, or fail where CI is set, unless this file is there."""
    if not path.exists():
        _lacking(f"{path.parts[-3]}/{path.parts[-2]}/{path.name} beside the checkout")


def _lacking(name: str) -> NoReturn:
    reason = f"this test needs {name}, which is not installed"
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; CI must have it")
    pytest.skip(reason)


def slack(seconds: float) -> float:
    """A time bound, twice as wide on a CI machine."""
    return seconds * 2 if os.environ.get("CI") else seconds


class Stopwatch:
    """Times a block; leaving it fails if it took more than ``most`` seconds, without those the machine stood still."""

    def __init__(self, most: float = math.inf) -> None:
        self.most = most
        self.seconds = 0.0

    def __enter__(self) -> Stopwatch:
        self.started = time.monotonic()
        return self

    def __exit__(self, error: object, *rest: object) -> None:
        self.seconds = elapsed(self.started)
        if error is None:
            assert self.seconds <= self.most, f"took {self.seconds:.3f} s, more than {self.most} s"


def quickest(function: Callable[[], object], times: int = 20) -> float:
    """The least of so many durations: what it takes where nothing else is going on."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        took.append(time.perf_counter() - began)
    return min(took)


def wait_until(happened: Callable[[], object], *, timeout: float = 10.0, every: float = 0.005) -> float:
    """Wait for a condition rather than a time; returns the seconds it took, fails after ``timeout`` of work."""
    started, pause = time.monotonic(), Event()
    while not happened():
        assert elapsed(started) < timeout, f"still not so after {timeout} s"
        pause.wait(every)  # for a condition: no sleep of a fixed time, which a pure test may not have
    return time.monotonic() - started


def watch(pid: int, folder: Path, signal: str = "KILL") -> subprocess.Popen[bytes]:
    """End a server and remove its folder, should the tests themselves be killed: then their end of the pipe closes."""
    end = f'kill -{signal} "$0"; for i in 1 2 3 4 5; do kill -0 "$0" && sleep 1; done; kill -9 "$0"; rm -rf "$1"'
    return subprocess.Popen(
        ["/bin/sh", "-c", f"read -r nothing; {{ {end}; }} 2>/dev/null", str(pid), str(folder)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


class LocalServer:
    """One server process in its own temporary folder, ended by its own process id.

    It is ended as well where the tests themselves end, and where they are killed.
    """

    start_seconds, end_seconds = 10.0, 10.0
    ending = signal.SIGKILL
    identity: Mapping[str, Any] = {}  # of another user, for Popen

    def __init__(self, port: int | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="throttle-server-"))
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.watcher: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        assert self.process is not None, "the server is not running"
        return self.process.pid

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        """Start it, on the same port as before, and wait until it answers."""
        # Ctrl-C in the terminal is for the tests, which end it themselves.
        options: dict[str, Any] = {"stderr": subprocess.STDOUT, "start_new_session": True, **self.identity}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command(), cwd=self.folder, stdout=log, **options)
        self.watcher = watch(self.pid, self.folder, self.ending.name.removeprefix("SIG"))
        wait_until(self._answers, timeout=self.start_seconds, every=0.01)

    def _answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, (self.folder / "log").read_text(
            "utf-8", "replace"
        )
        return self.answers()

    def pause(self) -> None:
        """Hang: the system still takes connections for it, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Send it to the server, and to the processes that it has for connections."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in (self.pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        if self.process is None or self.watcher is None:
            return
        self.watcher.kill()  # first, lest it kill a stranger
        self.watcher.communicate()
        self.process.send_signal(self.ending)
        try:
            self.process.wait(self.end_seconds)
        except subprocess.TimeoutExpired:  # MariaDB misses a signal that comes while it starts
            self.process.kill()
            self.process.wait()
        self.process = self.watcher = None

    def stop(self) -> None:
        """End it and remove its folder; harmless when it has ended already."""
        atexit.unregister(self.stop)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class RedisServer(LocalServer):
    """One Redis process without persistence.

    ``options`` are more arguments of the server, such as ``"--maxmemory", "6mb"``.
    """

    def __init__(self, *options: str, port: int | None = None) -> None:
        self.binary = need_binary("redis-server")
        self.options = options
        super().__init__(port)
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: object) -> Redis:
        """A plain client for the test's own questions; it never retries."""
        settings = {"socket_timeout": 5, "retry": Retry(NoBackoff(), 0), "decode_responses": True, **options}
        return Redis(host="127.0.0.1", port=self.port, **settings)

    def command(self) -> list[str]:
        command = [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        return [*command, "--save", "", "--appendonly", "no", *self.options]

    def answers(self) -> bool:
        with suppress(RedisError), self.client() as client:
            return bool(client.ping())
        return False

    def restart(self) -> None:
        """A crash and a new start: the same address, empty."""
        self.kill()
        self.start()

    def copy(self) -> bytes:
        with self.client(socket_timeout=60) as client:
            client.save()
        return (self.folder / "dump.rdb").read_bytes()

    def restart_from(self, copy: bytes) -> None:
        """A crash, and a new start with what it had when the copy was made."""
        self.kill()
        (self.folder / "dump.rdb").write_bytes(copy)
        self.start()
