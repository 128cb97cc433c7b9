"""Servers of HTTP as their users start them, each a process of its own with the site of ``tests.http.served``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Final

from tests.servers import RedisServer, need_package
from tests.web_server import WebServer

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
    "gunicorn-4": _gunicorn("-w", "4"),
    "hypercorn-wsgi": lambda port: ["hypercorn", "-b", f"127.0.0.1:{port}", "wsgi:tests.http.real:wsgi"],
}
ASGI: Final = ("uvicorn-h11", "uvicorn-httptools", "hypercorn", "daphne", "granian")
WSGI: Final = ("gunicorn", "hypercorn-wsgi")


class Server(WebServer):
    """One of them, which serves from its making to the end of the block."""

    site = "tests.http.real"

    def __init__(
        self, name: str, redis: RedisServer, rules: dict[str, Any], middleware: list[str] | None = None, **settings: Any
    ) -> None:
        super().__init__(name, redis.folder, f"{self.site} is loaded", 4 if name == "gunicorn-4" else 1)
        self.command = [part.replace(Server.site, self.site) for part in SERVERS[name](self.port)]
        for package in {self.command[0], "httptools" if name.endswith("httptools") else self.command[0]}:
            need_package(package)
        self.environment = {**os.environ, "REDIS_URL": redis.url}
        self.environment |= {"RULES": json.dumps(rules), "SETTINGS": json.dumps(settings)}
        self.environment["HOME"] = str(redis.folder)  # where gunicorn puts the socket that controls it
        if middleware is not None:
            self.environment["MIDDLEWARE"] = json.dumps(middleware)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.launch(self.command, self.environment)
        try:
            self.wait_until_it_serves()
        except BaseException:
            print(self.log.read_text())
            self.kill()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
