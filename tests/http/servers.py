"""Servers of HTTP as their users start them, each a process of its own with the site of ``tests.http.served``.

A ``Visit`` asks one as a client that may go away at any moment.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any, Final

from tests.servers import RedisServer, need_package
from tests.web_server import WebServer

Command = Callable[[int], list[str]]
SITE: Final = "tests.http.real"


def _uvicorn(*options: str) -> Command:
    usual = ["--host", "127.0.0.1", "--lifespan", "off", "--timeout-graceful-shutdown", "1"]
    return lambda port: ["uvicorn", *usual, *options, "--port", f"{port}", f"{SITE}:asgi"]


def _gunicorn(*options: str) -> Command:
    return lambda port: ["gunicorn", "-b", f"127.0.0.1:{port}", *options, f"{SITE}:wsgi"]


SERVERS: Final[dict[str, Command]] = {
    "uvicorn-h11": _uvicorn("--http", "h11"),
    "uvicorn-httptools": _uvicorn("--http", "httptools"),
    "hypercorn": lambda port: ["hypercorn", "-b", f"127.0.0.1:{port}", f"{SITE}:asgi"],
    "daphne": lambda port: ["daphne", "-b", "127.0.0.1", "-p", f"{port}", f"{SITE}:asgi"],
    "granian": lambda port: [
        *["granian", "--interface", "asginl", "--host", "127.0.0.1"],
        *["--port", f"{port}", f"{SITE}:asgi"],
    ],
    "gunicorn": _gunicorn("--threads", "8"),
    "gunicorn-sync": _gunicorn(),
    "gunicorn-gevent": _gunicorn("-k", "gevent"),
    "uvicorn-4": _uvicorn("--workers", "4"),
    "hypercorn-wsgi": lambda port: ["hypercorn", "-b", f"127.0.0.1:{port}", f"wsgi:{SITE}:wsgi"],
    "wsgiref": lambda port: [SITE, f"{port}"],
}
ASGI: Final = ("uvicorn-h11", "uvicorn-httptools", "hypercorn", "daphne", "granian")
WSGI: Final = ("gunicorn", "hypercorn-wsgi")


class Server(WebServer):
    """A server that serves from its making to the end of the block; ``settings`` are DJANGO_THROTTLE's."""

    def __init__(
        self, name: str, redis: RedisServer, rules: dict[str, Any], middleware: list[str] | None = None, **settings: Any
    ) -> None:
        super().__init__(name, redis.folder, f"{SITE} is loaded", 4 if name.endswith("-4") else 1)
        self.command = SERVERS[name](self.port)
        for package in {self.command[0].partition(".")[0], *({"httptools", "gevent"} & {*name.split("-")})}:
            need_package(package)
        self.environment = {**os.environ, "REDIS_URL": redis.url}
        self.environment |= {"RULES": json.dumps(rules), "SETTINGS": json.dumps(settings)}
        self.environment["HOME"] = str(redis.folder)  # where gunicorn puts the socket that controls it
        if middleware is not None:
            self.environment["MIDDLEWARE"] = json.dumps(middleware)
        self.start()

    def start(self) -> None:
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


class Visit:
    """One connection, and one request or several on it, sent at once."""

    def __init__(self, site: WebServer, *wheres: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", site.port), timeout=20)
        if wheres:
            self.ask(*wheres)

    def ask(self, *wheres: str) -> None:
        last = len(wheres) - 1
        self.socket.sendall("".join(_request(where, at == last) for at, where in enumerate(wheres)).encode())

    def statuses(self) -> list[int]:
        text = b""
        while part := self.socket.recv(65536):
            text += part
        return [int(line.split()[1]) for line in text.splitlines() if line.startswith(b"HTTP/1.1 ")]

    def leave(self) -> None:
        self.socket.close()

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def _request(where: str, last: bool) -> str:
    return f"GET {where} HTTP/1.1\r\nHost: localhost\r\nConnection: {'close' if last else 'keep-alive'}\r\n\r\n"
