"""What is seen of an open socket, and that it can be closed from any thread."""

from __future__ import annotations

import asyncio
import time
from threading import Thread

import pytest

from django_throttle.connections.open_sockets import OpenSocket, open_sockets
from django_throttle.sockets.error_frames import notice_payload
from tests.consumers import TWO_SOCKETS, held
from tests.doors import Enforce, enforcer
from tests.sockets.guarded import Line, only

enforce = pytest.fixture(enforcer)


async def test_what_is_seen_of_a_socket(enforce: Enforce) -> None:
    frames = {"rate": "2/min", "events": ["message"], "key": "connection", "algorithm": "gcra"}
    store = enforce(sockets={**TWO_SOCKETS, "key": "ip"}, frames=frames)
    before = time.monotonic()
    line = await Line().open()
    found = only()
    assert (found.scope, found.path, found.address) == ("chat", "/chat", "203.0.113.9")
    assert found.idents == {"ip:203.0.113.9"}
    assert before <= found.opened <= found.last_received <= time.monotonic()
    line.send("1", "2", "3")
    await line.until(lambda: line.told("error"))
    assert found.last_received > found.opened
    assert (found.received, found.refused, found.sent, found.lost) == (3, 1, 2, 0)
    (lease,) = found.leases
    assert held(store) == 1 and store.leases.unreleased() == {lease.id}
    await line.close()
    assert open_sockets.everyone() == ()


async def test_it_can_be_closed_once_from_another_thread(enforce: Enforce) -> None:
    store = enforce(sockets=TWO_SOCKETS)
    line = await Line().open()
    found, payload = only(), notice_payload("evicted", "Another one took its place.")
    for code in (4430, 4002):
        thread = Thread(target=found.close, args=(code, "evicted", payload))
        thread.start()
        thread.join()
    await line.until(lambda: line.closed)
    assert line.told("error") == [payload]
    assert line.closed == {"type": "websocket.close", "code": 4430, "reason": "evicted"}
    assert line.task is not None
    await line.task
    assert (held(store), line.got[-1]["code"]) == (0, 4430)
    found.close(4003, "goodbye")
    await asyncio.sleep(0)
    assert [event["code"] for event in line.sent if event["type"] == "websocket.close"] == [4430]


def test_a_socket_whose_loop_is_gone_is_left_alone(enforce: Enforce) -> None:
    enforce()
    found: list[OpenSocket] = []

    async def look() -> None:
        line = await Line().open()
        found.append(only())
        await line.close()

    asyncio.run(look())
    found[0].close(4000, "goodbye")
    found[0].reset()
