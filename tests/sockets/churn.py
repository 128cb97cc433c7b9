"""Clients that come and go: as many connections a second as the machine makes, up to a rate, for some seconds."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tests.sockets.servers import CAP, Server
from tests.sockets.visitor import PATIENCE, Visitor, reset, until

CALLERS: Final = 20
AT_ONCE: Final = 40  # clients; each has one connection at a time
CLOSE_FRAME: Final = b"\x88\x82\x00\x00\x00\x00\x03\xe8"  # 1000, masked with zeros


class Churn:
    """What has happened: connections by how they ended, and the most and the least that was ever counted."""

    def __init__(self, servers: Sequence[Server], rate: float, seconds: float) -> None:
        self.callers = [Visitor(server) for server, _ in zip(itertools.cycle(servers), range(CALLERS), strict=False)]
        self.chance = random.Random(1)
        self.ended: Counter[str] = Counter()
        self.counted: set[int] = set()
        self.rate, self.seconds = rate, seconds
        self.began = self.took = self.settled = 0.0

    async def run(self) -> None:
        self.began = time.monotonic()
        clients = [asyncio.create_task(self._come_and_go(path)) for path in self._paths(AT_ONCE)]
        while not all(client.done() for client in clients):
            self.counted.add(self.chance.choice(self.callers).held())
            await asyncio.sleep(0.05)
        await asyncio.gather(*clients)
        self.took = time.monotonic() - self.began
        self.settled = await until(lambda: not self.held())

    def held(self) -> int:
        """The sockets of all callers that Redis counts."""
        return sum(caller.held() for caller in self.callers)

    @staticmethod
    def _paths(count: int) -> list[str]:
        return [path for path, _ in zip(itertools.cycle(("chat", "middleware", "sync")), range(count), strict=False)]

    async def _come_and_go(self, path: str) -> None:
        while (since := time.monotonic() - self.began) < self.seconds:
            if sum(self.ended.values()) > self.rate * since:
                await asyncio.sleep(0.01)
                continue
            self.ended[await asyncio.wait_for(self._once(path), PATIENCE)] += 1

    async def _once(self, path: str) -> str:
        reader, writer = await self.chance.choice(self.callers).raw(path)
        how = self.chance.choice(("close", "fin", "reset", "early"))
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            if how != "early":
                head = await reader.readuntil(b"\r\n\r\n")
                how = how if b" 101 " in head else "refused"
            if how == "close":
                writer.write(CLOSE_FRAME)
                await reader.read(4)
        if how == "reset":
            reset(writer.transport)
        writer.transport.abort()
        return how

    def __str__(self) -> str:
        count = sum(self.ended.values())
        ways = ", ".join(f"{number} {how}" for how, number in sorted(self.ended.items()))
        return (
            f"{count} connections in {self.took:.1f} s, {count / self.took:.0f} a second ({ways}); "
            f"counted {min(self.counted)} to {max(self.counted)} of {CAP}; none {self.settled:.2f} s after the last"
        )
