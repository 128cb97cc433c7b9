"""A host judges its own processes only, and only when it is sure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_throttle.connections import process_identity
from tests.servers import wait_until


def of(pid: int) -> dict[str, Any]:
    started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]  # proc(5), field 22
    return {"host": process_identity.host(), "pid": pid, "started": int(started)}


@pytest.fixture
def child(servers: None) -> Iterator[Any]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def test_a_child_lives_until_it_ends(child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = of(child.pid)
    assert process_identity.is_alive(meta) is True
    assert process_identity.is_alive({**meta, "started": meta["started"] - 1}) is False, "another had this pid"
    with monkeypatch.context() as patch:
        patch.setattr(process_identity, "PROC", tmp_path)
        assert process_identity.is_alive(meta) is None, "hidden, as under hidepid or in a container without /proc"
    child.kill()
    wait_until(lambda: process_identity.is_alive(meta) is False)  # defunct: nobody has waited for it yet
    child.wait()
    monkeypatch.setattr(process_identity, "PROC", tmp_path)
    assert process_identity.is_alive(meta) is False


@pytest.mark.parametrize(
    "changed",
    [{"host": "elsewhere"}, {"host": ""}, {"pid": "1"}, {"pid": -1}, {"pid": None}, {"pid": True}, {"started": None}],
)
def test_what_cannot_be_told_is_not_judged(changed: dict[str, Any]) -> None:
    assert process_identity.is_alive({**of(os.getpid()), **changed}) is None
    assert process_identity.is_alive({}) is None


def test_a_container_that_shares_the_pids_judges_them_under_any_hostname() -> None:
    meta = of(os.getpid())
    assert process_identity.is_alive({**meta, "host": f"another/{meta['host'].partition('/')[2]}"}) is True
    assert process_identity.is_alive({**meta, "host": f"{meta['host']}0"}) is None, "of another boot"


@pytest.mark.parametrize("text", ["", "nonsense", "[1]", "null", b"\xff"])
def test_reads_anything(text: Any) -> None:
    assert process_identity.read(text) == {}
