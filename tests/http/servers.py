"""Servers of HTTP as their users start them, each a process of its own with the site of ``tests.http.served``."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from tests.http.server import ROOT
from tests.servers import RedisServer, free_port, need_package, slack, wait_until

Command = Callable[[int], list[str]]


def _uvicorn(protocol: str) -> Command:
    options = ["--host", "127.0.0.1", "--lifespan", "off", "--http", protocol, "--timeout-graceful-shutdown", "1"]
    return lambda port: ["uvicorn", *options, "--port", f"{port}", "tests.http.real:asgi"]


def _gunicorn(*options: str) -> Command:
    return lambda port: ["gunicorn", "-b", f"127.0.0.1:{port}", *options, "tests.http.real:wsgi"]


SERVERS: Final[dict[str, Command]] = {
    "uvicorn-h11": _uvicorn("h11"),
    "uvicorn-httptools": _uvicorn("httptools"),
    "hypercorn": lambda port: ["hypercorn", "-b", f"127.0.0.1:{port}", "tests.http.real:asgi"],
    "daphne": lambda port: ["daphne", "-b", "127.0.0.1", "-p", f"{port}", "tests.http.real:asgi"],
    "granian": lambda port: [
        *["granian", "--interface", "asginl", "--host", "127.0.0.1"],
        *["--port", f"{port}", "tests.http.real:asgi"],
    ],
    "gunicorn": _gunicorn("--threads", "8"),
    "hypercorn-wsgi": lambda port: ["hypercorn", "-b", f"127.0.0.1:{port}", "wsgi:tests.http.real:wsgi"],
}
ASGI: Final = ("uvicorn-h11", "uvicorn-httptools", "hypercorn", "daphne", "granian")
WSGI: Final = ("gunicorn", "hypercorn-wsgi")


class Server:
    """One server in a session of its own, so that its end reaches its workers and nobody else."""

    def __init__(
        self, name: str, redis: RedisServer, rules: dict[str, Any], middleware: list[str] | None = None, **settings: Any
    ) -> None:
        self.name, self.port = name, free_port()
        self.command = SERVERS[name](self.port)
        for package in {self.command[0], "httptools" if name.endswith("httptools") else self.command[0]}:
            need_package(package)
        self.environment = {**os.environ, "REDIS_URL": redis.url}
        self.environment |= {"RULES": json.dumps(rules), "SETTINGS": json.dumps(settings)}
        self.environment["HOME"] = str(redis.folder)  # where gunicorn puts the socket that controls it
        if middleware is not None:
            self.environment["MIDDLEWARE"] = json.dumps(middleware)
        self.log = redis.folder / f"{name}-{self.port}.log"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.command],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_until(self._serves, timeout=slack(60), every=0.05)
        except BaseException:
            print(self.log.read_text())
            self.stop()
            raise

    def _serves(self) -> bool:
        assert self.process.poll() is None
        if "tests.http.real is loaded" not in self.log.read_text():
            return False
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def signal(self) -> None:
        """SIGTERM to the process that was started, as a deployment does."""
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
