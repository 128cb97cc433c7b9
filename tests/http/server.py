"""Starts tests.http.served, and asks it as a client that may go away at any moment."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from tests.servers import RedisServer, free_port, slack, wait_until

ROOT = Path(__file__).parents[2]


class Site:
    """``processes`` of one server on one port; ``settings`` are DJANGO_THROTTLE's."""

    def __init__(self, kind: str, redis: RedisServer, rules: dict[str, Any], processes: int = 1, **settings: Any):
        self.port = free_port()
        environment = {
            **os.environ,
            "REDIS_URL": redis.url,
            "RULES": json.dumps(rules),
            "SETTINGS": json.dumps(settings),
            "PORT": str(self.port),
            "PROCESSES": str(processes),
            "SERVER": kind,
        }
        self.log = redis.folder / f"site-{self.port}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.http.served"],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        self.pids: list[int] = json.loads(self.process.stdout.readline() or "[]")
        try:
            wait_until(self._answers, timeout=slack(20))
        except BaseException:
            print(self.log.read_text())
            self.stop()
            raise

    def _answers(self) -> bool:
        with Visit(self, "/middleware/quick/probe") as visit:
            return visit.statuses() == [200]

    def kill(self) -> None:
        """All at once, as a crash would."""
        for pid in self.pids:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Listening(Protocol):
    port: int


class Visit:
    """One connection, and one request or several on it, sent at once."""

    def __init__(self, site: Listening, *wheres: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", site.port), timeout=20)
        if wheres:
            self.ask(*wheres)

    def ask(self, *wheres: str) -> None:
        """All of them in one packet, as a client that pipelines does."""
        last = len(wheres) - 1
        self.socket.sendall("".join(_request(where, at == last) for at, where in enumerate(wheres)).encode())

    def head(self) -> bytes:
        """The first of what comes back."""
        return self.socket.recv(200)

    def statuses(self) -> list[int]:
        """Of all answers, once the server has closed the connection."""
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
