"""A server for the JavaScript helper's tests: a page that loads it, and sockets that do as they are told."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

SCRIPT = Path(__file__).parent.parent / "django_throttle" / "static" / "django_throttle" / "throttled-socket.js"
PAGE = b"""<!doctype html><meta charset=utf-8><link rel=icon href=data:,><script type=module>
import { ThrottledSocket } from "/throttled-socket.js";
window.open_socket = (path, options) => {
  const socket = new ThrottledSocket(path, options);
  window.told = [];
  window.began = performance.now();
  const at = () => (performance.now() - window.began) / 1000;
  for (const type of ["open", "close", "throttled", "waiting", "resumed", "dropped", "lost"]) {
    socket.addEventListener(type, (event) => window.told.push({ ...event.detail, type, at: at() }));
  }
  socket.addEventListener("message", (event) => window.told.push({ type: "message", at: at(), data: event.data }));
  window.socket = socket;
};
window.ready = true;
</script>"""


class Server:
    """Answers as the real doors do; ``script`` says what each further connection meets."""

    def __init__(self) -> None:
        self.received: list[tuple[float, str]] = []
        self.connections = 0
        self.script: list[list[dict[str, Any]]] = []

    async def run(self, port: int, started: Any, ended: asyncio.Event) -> None:
        async with serve(self.talk, "127.0.0.1", port, process_request=self.page):
            started.set()
            await ended.wait()

    def page(self, connection: ServerConnection, request: Request) -> Response | None:
        if "Upgrade" in request.headers:
            return None
        script = request.path == "/throttled-socket.js"
        body, kind = (SCRIPT.read_bytes(), "text/javascript") if script else (PAGE, "text/html")
        headers = Headers({"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"})
        return Response(HTTPStatus.OK, "OK", headers, body)

    async def talk(self, connection: ServerConnection) -> None:
        steps = self.script[self.connections] if self.connections < len(self.script) else []
        self.connections += 1
        for step in steps:
            await self.take(step, connection)
        async for message in connection:
            self.note(message)
            await connection.send(message)

    async def take(self, step: dict[str, Any], connection: ServerConnection) -> None:
        if "after" in step:
            for _ in range(step["after"]):
                self.note(await connection.recv())
        if "say" in step:
            await connection.send(json.dumps(step["say"]))
        if "close" in step:
            await connection.close(step["close"], step.get("reason", ""))

    def note(self, message: str | bytes) -> None:
        self.received.append((asyncio.get_running_loop().time(), str(message)))
