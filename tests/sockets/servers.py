"""Every ASGI server that sockets are tested on, started as its users start it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from django_throttle.conf import Conf
from tests.servers import RedisServer, need_package, slack
from tests.web_server import WebServer

CAP: Final = 5
FRAMES: Final = 20
RULES: Final[dict[str, dict[str, Any]]] = {
    "sockets": {"limit": CAP, "algorithm": "concurrency", "events": ["connection"], "key": "tests.served.who"},
    # So slow that a busy machine sends all frames before another is due.
    "frames": {"rate": f"{FRAMES}/h", "events": ["message"], "key": "tests.served.who", "algorithm": "gcra"},
}
HASTE: Final = 10  # so many times as fast as by default
USUAL: Final = {"BEAT_INTERVAL": Conf().BEAT_INTERVAL, "PROCESS_TTL": Conf().PROCESS_TTL}
HASTY: Final = {name: seconds / HASTE for name, seconds in USUAL.items()}
CALM: Final = {"DEADLINE": 5.0}  # where a busy machine is no excuse: nothing is about deadlines
# How often a server asks whether its client is still there, and how long it waits for the answer.
PING, PONG = 1, 2


class Kind(NamedTuple):
    """A server's package, its command for a port, the options that make it ping; ``denies`` by an HTTP response."""

    package: str
    command: Callable[[str], tuple[str, ...]]
    pings: tuple[str, ...] = ()
    denies: bool = True


def _uvicorn(implementation: str, package: str) -> Kind:
    fixed = ("uvicorn", "--host", "127.0.0.1", "--lifespan", "off", "--ws", implementation, "--port")
    return Kind(package, lambda port: (*fixed, port), ("--ws-ping-interval", f"{PING}", "--ws-ping-timeout", f"{PONG}"))


SERVERS: Final = {
    "daphne": Kind(
        "daphne",
        lambda port: ("daphne", "-b", "127.0.0.1", "-p", port),
        ("--ping-interval", f"{PING}", "--ping-timeout", f"{PONG}"),
        denies=False,
    ),
    "uvicorn-sansio": _uvicorn("websockets-sansio", "websockets"),
    "uvicorn-websockets": _uvicorn("websockets", "websockets"),
    "uvicorn-wsproto": _uvicorn("wsproto", "wsproto"),
    "hypercorn": Kind("hypercorn", lambda port: ("hypercorn", "-b", f"127.0.0.1:{port}")),
    "granian": Kind(
        "granian", lambda port: ("granian", "--interface", "asginl", "--host", "127.0.0.1", "--port", port)
    ),
}


class Server(WebServer):
    """One of them, with all its processes; ``settings`` are more than those of ``tests.served``, or others."""

    def __init__(
        self,
        name: str,
        redis: RedisServer,
        folder: Path,
        *,
        workers: int = 1,
        pings: bool = False,
        settings: Mapping[str, Any] = {},
    ) -> None:
        super().__init__(name, folder, "tests.served is loaded", workers)
        self.kind, self.redis = SERVERS[name], redis
        need_package(self.kind.package)
        environment = {**os.environ, "REDIS_URL": redis.url, "RULES": json.dumps(RULES)}
        environment["SETTINGS"] = json.dumps({**CALM, **HASTY, **settings})
        options: tuple[str, ...] = ("--workers", str(workers)) if workers > 1 else ()
        options += self.kind.pings if pings else ()
        self.launch([*self.kind.command(str(self.port)), *options, "tests.served:application"], environment)

    def wait(self) -> Server:
        """Until every worker has loaded the application, and somebody listens."""
        self.wait_until_it_serves()
        return self

    def pids(self) -> list[int]:
        """The workers, as they said themselves."""
        lines = self.log.read_text().splitlines()
        return [int(line.rpartition(" ")[2]) for line in lines if self.loaded in line]

    async def terminate(self) -> None:
        """What a deployment does: SIGTERM to the process that was started, and wait for it."""
        self.signal()
        await asyncio.to_thread(self.process.wait, slack(20))


@contextmanager
def serving(redis: RedisServer, folder: Path) -> Iterator[Callable[..., list[Server]]]:
    """Start servers by their names, all with the same options, and kill them at the end."""
    started: list[Server] = []

    def start(*names: str, wait: bool = True, **options: Any) -> list[Server]:
        new = [Server(name, redis, folder, **options) for name in names]
        started.extend(new)
        return [server.wait() for server in new] if wait else new

    try:
        yield start
    finally:
        for server in started:
            server.kill()
