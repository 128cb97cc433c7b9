"""This process: who it is, whether another still runs as far as this host can tell, and the WebSockets open here."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from django_throttle.core import Lease
from django_throttle.lifecycle import in_child, shutdown

PROC = Path("/proc")


def describe(held: int, turn: int = 0) -> str:
    """This process as JSON: host, pid, start in ticks since boot, leases that it holds, how many uids it had before."""
    return json.dumps({**_self(os.getpid()), "held": held, "turn": turn}, separators=(",", ":"))


def read(text: str | bytes) -> dict[str, Any]:
    """What ``describe`` wrote; an empty dict for anything else."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def is_alive(meta: Mapping[str, Any]) -> bool | None:
    """Whether the process runs; None when this host cannot tell, because it is another's or hidden.

    A defunct process is dead, and so is one whose pid now belongs to a process with another start.
    """
    pid, started = meta.get("pid"), meta.get("started")
    if not meta.get("host") or meta["host"] != host() or type(pid) is not int or pid <= 0:
        return None
    stat = _stat(pid)
    if stat is None or started is None:
        return False if _is_gone(pid) else None
    state, ticks = stat
    return state not in "ZXx" and ticks == started


@lru_cache(maxsize=1)
def host() -> str:
    """Hostname, pid namespace and boot, so that no two containers judge each other's pids; empty when unknown."""
    try:
        namespace = (PROC / "self/ns/pid").stat().st_ino
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "" if PROC.is_dir() else socket.gethostname()
    return f"{socket.gethostname()}/{namespace}/{boot}"


@lru_cache(maxsize=1)
def _self(pid: int) -> dict[str, Any]:
    stat = _stat(pid)
    return {"host": host(), "pid": pid, "started": stat[1] if stat else None}


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start of a process; None when it cannot be read. Source: proc(5), fields 3 and 22."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
        fields = text.rpartition(")")[2].split()  # the name in brackets may hold spaces and brackets
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _is_gone(pid: int) -> bool:
    """True only when the kernel says that there is no such process: it may just be hidden from us."""
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


class OpenSocket(Protocol):
    """What others see of an open socket, from any thread.

    ``id`` is its own in this process, ``scope`` names its rules, ``path`` is where it was opened. ``leases`` are what
    it holds of concurrency rules, ``idents`` all that it counts for. ``opened`` and ``last_received``, when its last
    frame came in, are on time.monotonic's clock. ``received``, ``refused``, ``sent`` and ``lost`` are numbers of
    frames: refused ones came in, lost ones were to go out. ``address`` is empty when nobody knows it.
    """

    id: str
    scope: str
    path: str
    leases: tuple[Lease, ...]
    opened: float
    last_received: float
    received: int
    refused: int
    sent: int
    lost: int

    @property
    def idents(self) -> frozenset[str]: ...

    @property
    def address(self) -> str: ...

    def close_code(self, reason: str) -> int:
        """The code that it is closed with for this reason."""

    def close(self, code: int, reason: str, payload: object = None) -> None:
        """Have its event loop close it; a second time, or when it has closed, changes nothing."""

    def reset(self) -> None:
        """Have it forget the refusals that it remembers: its budgets were given back."""


class OpenSockets:
    """All guarded sockets of this process; none in a forked child."""

    def __init__(self) -> None:
        self._sockets: dict[int, OpenSocket] = {}
        in_child(self, OpenSockets.clear)

    def add(self, socket: OpenSocket) -> None:
        """It has been let in."""
        self._sockets[id(socket)] = socket
        shutdown.watch()

    def remove(self, socket: OpenSocket) -> None:
        """It has ended; a second time changes nothing."""
        self._sockets.pop(id(socket), None)

    def clear(self) -> None:
        """Forget all of them."""
        self._sockets.clear()

    def everyone(self) -> tuple[OpenSocket, ...]:
        """All of them, as they are at this moment."""
        return tuple(self._sockets.values())

    def __len__(self) -> int:
        return len(self._sockets)


open_sockets = OpenSockets()
