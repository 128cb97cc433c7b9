"""Somebody else's server, on a real socket, which answers as it is told; and processes that call it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
from django.test import override_settings

from django_throttle.httpx import AsyncThrottledTransport, CallRefused, ThrottledTransport

CLOCKS = 0.02  # seconds by which the clocks of Redis and of a process may differ over a test


class OtherSide(ThreadingHTTPServer):
    """``arrivals`` are the moments at which calls came; each takes its answer from ``answers``, at last plain 200s."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.arrivals: list[float] = []
        self.bodies: list[bytes] = []  # that were sent
        self.body = b"ok"  # of each answer
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.go_on = threading.Event()  # answers wait for it
        self.go_on.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def leads(self, *turns: float) -> list[float]:
        """By how much each call came before its turn; late ones are no fault of who sent them."""
        return [turn - came for turn, came in zip(turns, sorted(self.arrivals), strict=True) if came < turn - CLOCKS]


class _Handler(BaseHTTPRequestHandler):
    server: OtherSide

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        while self.headers.get("Transfer-Encoding") and (size := int(self.rfile.readline(), 16)):
            body += self.rfile.read(size + 2)[:size]
        self.server.arrivals.append(time.monotonic())
        self.server.bodies.append(body)
        status, fields = self.server.answers.pop(0) if self.server.answers else (200, {})
        self.server.go_on.wait(30)
        self.send_response_only(status)
        for name, text in {"Content-Length": str(len(self.server.body)), **fields}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(self.server.body)

    do_POST = do_GET  # noqa: N815  (http.server's name)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def other_side() -> Iterator[OtherSide]:
    with OtherSide() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.go_on.set()
            server.shutdown()
            thread.join()


def client(**options: Any) -> httpx.Client:
    return httpx.Client(transport=ThrottledTransport("crm", **options))


def aclient(**options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=AsyncThrottledTransport("crm", **options))


def call(number: int, url: str, throttle: dict[str, Any], calls: int, options: dict[str, Any]) -> list[Any]:
    """What came of so many calls: statuses, or for how long one was refused; odd workers make them all at once."""
    with override_settings(DJANGO_THROTTLE={"AGENT": False, "DATABASE_RULES": False, "DEADLINE": 10.0, **throttle}):
        if number % 2:
            return asyncio.run(_acall(url, calls, options))
        with client(**options) as caller:
            return [_call(caller, url) for _ in range(calls)]


def _call(caller: httpx.Client, url: str) -> Any:
    try:
        return caller.get(url).status_code
    except CallRefused as error:
        return -(error.decision.retry_after or 0)


async def _acall(url: str, calls: int, options: dict[str, Any]) -> list[Any]:
    async with aclient(**options) as caller:
        found = await asyncio.gather(*(caller.get(url) for _ in range(calls)), return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException) and not isinstance(one, CallRefused):
            raise one
    return [one.status_code if isinstance(one, httpx.Response) else -(one.decision.retry_after or 0) for one in found]
