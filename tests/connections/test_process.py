"""A host judges its own processes only, and only when it is sure; its open sockets can be closed from any thread."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from django_throttle.connections import process
from django_throttle.connections.process import OpenSocket, open_sockets
from django_throttle.sockets.error_frames import notice_payload
from tests.consumers import TWO_SOCKETS, held
from tests.doors import Enforce, enforcer
from tests.servers import wait_until
from tests.sockets.guarded import Line, only


def of(pid: int) -> dict[str, Any]:
    started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]  # proc(5), field 22
    return {"host": process.host(), "pid": pid, "started": int(started)}


@pytest.fixture
def child() -> Any:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.wait()
    child.stdin.close()


def test_describes_this_process() -> None:
    meta = process.read(process.describe(7))
    assert meta == {**of(os.getpid()), "held": 7, "turn": 0}
    assert process.is_alive(meta) is True


def test_a_child_lives_until_it_ends(child: Any) -> None:
    meta = of(child.pid)
    assert process.is_alive(meta) is True
    child.kill()
    wait_until(lambda: process.is_alive(meta) is False)  # defunct: nobody has waited for it yet
    child.wait()
    assert process.is_alive(meta) is False


def test_a_pid_with_another_start_is_another_process(child: Any) -> None:
    meta = of(child.pid)
    assert process.is_alive({**meta, "started": meta["started"] - 1}) is False


@pytest.mark.parametrize(
    "changed",
    [{"host": "elsewhere"}, {"host": ""}, {"pid": "1"}, {"pid": -1}, {"pid": None}, {"pid": True}, {"started": None}],
)
def test_what_cannot_be_told_is_not_judged(changed: dict[str, Any]) -> None:
    assert process.is_alive({**of(os.getpid()), **changed}) is None
    assert process.is_alive({}) is None


@pytest.mark.parametrize("text", ["", "nonsense", "[1]", "null", b"\xff"])
def test_reads_anything(text: Any) -> None:
    assert process.read(text) == {}


def test_a_hidden_process_is_not_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: Any) -> None:
    """As under hidepid, or in a container without /proc."""
    meta = of(child.pid)
    monkeypatch.setattr(process, "PROC", tmp_path)
    assert process.is_alive(meta) is None
    child.kill()
    child.wait()
    assert process.is_alive(meta) is False


def test_a_host_that_cannot_name_itself_judges_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = of(os.getpid())
    process.host.cache_clear()
    monkeypatch.setattr(process, "PROC", tmp_path)
    try:
        assert process.host() == ""
        assert process.is_alive(meta) is None
    finally:
        process.host.cache_clear()


def test_a_forked_child_is_another_process() -> None:
    mine = process.describe(0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, process.describe(0).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        theirs = json.load(pipe)
    os.waitpid(child, 0)
    assert theirs["pid"] == child != json.loads(mine)["pid"]


PER_ADDRESS = {**TWO_SOCKETS, "key": "ip"}

enforce = pytest.fixture(enforcer)


class TestLive:
    async def test_what_one_sees_of_a_socket(self, enforce: Enforce) -> None:
        rules = {"frames": {"rate": "2/min", "events": ["message"], "key": "connection", "algorithm": "gcra"}}
        store = enforce(sockets=PER_ADDRESS, **rules)
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
        assert len(open_sockets) == 1
        await line.close()
        assert open_sockets.everyone() == ()

    async def test_it_can_be_closed_from_another_thread(self, enforce: Enforce) -> None:
        store = enforce(sockets=TWO_SOCKETS)
        line = await Line().open()
        payload = notice_payload("evicted", "Another one took its place.")
        thread = Thread(target=only().close, args=(4430, "evicted", payload))
        thread.start()
        await line.until(lambda: line.closed)
        thread.join()
        assert line.told("error") == [payload]
        assert line.closed == {"type": "websocket.close", "code": 4430, "reason": "evicted"}
        assert line.task is not None
        await line.task
        assert held(store) == 0
        assert line.got[-1]["code"] == 4430

    async def test_a_second_close_and_one_of_what_is_over_change_nothing(self, enforce: Enforce) -> None:
        enforce()
        line = await Line().open()
        found = only()
        for code in (4001, 4002):
            found.close(code, "goodbye")
        assert line.task is not None
        await line.task
        assert [event["code"] for event in line.sent if event["type"] == "websocket.close"] == [4001]
        found.close(4003, "goodbye")
        await asyncio.sleep(0)
        assert line.sent[-1]["code"] == 4001

    def test_a_socket_whose_loop_is_gone_is_left_alone(self, enforce: Enforce) -> None:
        enforce()
        found: list[OpenSocket] = []

        async def look() -> None:
            line = await Line().open()
            found.append(only())
            await line.close()

        asyncio.run(look())
        found[0].close(4000, "goodbye")
        found[0].reset()
