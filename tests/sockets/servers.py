"""Every ASGI server that sockets are tested on, started as its users start it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from django_throttle.conf import Conf
from tests.servers import RedisServer, free_port, need_package, slack, wait_until

ROOT: Final = Path(__file__).parents[2]
CAP: Final = 5
FRAMES: Final = 20
RULES: Final[dict[str, dict[str, Any]]] = {
    "sockets": {"limit": CAP, "algorithm": "concurrency", "events": ["connection"], "key": "tests.served.who"},
    "frames": {"rate": f"{FRAMES}/min", "events": ["message"], "key": "tests.served.who", "algorithm": "gcra"},
}
# What a process does by default, ten times as fast.
HASTE: Final = 10
USUAL: Final = {"BEAT_INTERVAL": Conf().BEAT_INTERVAL, "PROCESS_TTL": Conf().PROCESS_TTL}
HASTY: Final = {name: seconds / HASTE for name, seconds in USUAL.items()}
CALM: Final = {"DEADLINE": 5.0}  # where a busy machine is no excuse: nothing is about deadlines
# How often a server asks whether its client is still there, and how long it waits for the answer.
PING, PONG = 1, 2


class Kind(NamedTuple):
    """A server's package, its command for a port, and what makes it ping; does it send denial responses?"""

    package: str
    command: Callable[[str], tuple[str, ...]]
    pings: tuple[str, ...] = ()
    denies: bool = True


def _uvicorn(implementation: str, package: str) -> Kind:
    fixed = ("-m", "uvicorn", "--host", "127.0.0.1", "--lifespan", "off", "--ws", implementation, "--port")
    return Kind(package, lambda port: (*fixed, port), ("--ws-ping-interval", f"{PING}", "--ws-ping-timeout", f"{PONG}"))


SERVERS: Final = {
    "daphne": Kind(
        "daphne",
        lambda port: ("-m", "daphne", "-b", "127.0.0.1", "-p", port),
        ("--ping-interval", f"{PING}", "--ping-timeout", f"{PONG}"),
        denies=False,
    ),
    "uvicorn-sansio": _uvicorn("websockets-sansio", "websockets"),
    "uvicorn-websockets": _uvicorn("websockets", "websockets"),
    "uvicorn-wsproto": _uvicorn("wsproto", "wsproto"),
    "hypercorn": Kind("hypercorn", lambda port: ("-m", "hypercorn", "-b", f"127.0.0.1:{port}")),
    "granian": Kind(
        "granian",
        lambda port: ("-m", "granian", "--interface", "asginl", "--host", "127.0.0.1", "--port", port),
    ),
}


class Server:
    """One server and all its processes; ``settings`` are more than those of ``tests.served``, or others.

    It is a session of its own, so that a kill reaches its workers and nobody else.
    """

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
        self.name, self.kind, self.redis = name, SERVERS[name], redis
        self.port, self.workers = free_port(), workers
        need_package(self.kind.package)
        environment = {**os.environ, "REDIS_URL": redis.url, "RULES": json.dumps(RULES)}
        environment["SETTINGS"] = json.dumps({**CALM, **HASTY, **settings})
        self.log = folder / f"{name}-{self.port}.log"
        options: tuple[str, ...] = ("--workers", str(workers)) if workers > 1 else ()
        options += self.kind.pings if pings else ()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.kind.command(str(self.port)), *options, "tests.served:application"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> Server:
        """Until every worker has loaded the application, and somebody listens."""
        wait_until(self._serves, timeout=slack(60), every=0.05)
        return self

    def _serves(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        if self.log.read_text().count("tests.served is loaded") < self.workers:
            return False
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def pids(self) -> list[int]:
        """The workers, as they said themselves."""
        lines = self.log.read_text().splitlines()
        return [int(line.rpartition(" ")[2]) for line in lines if "tests.served is loaded" in line]

    async def terminate(self) -> None:
        """What a deployment does: SIGTERM to the process that was started, and wait for it."""
        self.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self.process.wait, slack(20))

    def kill(self) -> None:
        """SIGKILL to all its processes at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
