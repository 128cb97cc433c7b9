"""Who a process is, as it tells others, and whether it still runs, as far as this host can tell."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

PROC = Path("/proc")


def describe(held: int, turn: int = 0) -> str:
    """This process as JSON: host, pid, start in ticks since boot, leases that it holds, how many uids it had before."""
    return json.dumps({**_self(os.getpid()), "held": held, "turn": turn}, separators=(",", ":"))


def read(text: Any) -> dict[str, Any]:
    """What a process wrote of itself as JSON; an empty dict for anything else."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_alive(meta: Mapping[str, Any]) -> bool | None:
    """Whether the process runs; None when this host cannot tell, because it is another's or hidden.

    A defunct process is dead, and so is one whose pid now belongs to a process with another start.
    """
    pid, started = meta.get("pid"), meta.get("started")
    if not host() or _namespace(str(meta.get("host"))) != _namespace(host()) or type(pid) is not int or pid <= 0:
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


def _namespace(host: str) -> str:
    """Return the part of a host that says whose pids it has: containers of other hostnames may share them."""
    return host.partition("/")[2] or host


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
    try:
        if os.name == "posix":
            os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


class HostProcesses(NamedTuple):
    """Uids of this host's processes; those of other hosts are in neither list."""

    living: list[str]
    dead: list[str]


def processes_of_host(census: Mapping[str, Mapping[str, Any]]) -> HostProcesses:
    """Which of these processes this host sees running, and which it knows to have ended.

    A former uid of a process that runs is in neither list: the process itself sweeps it, or it expires.
    """
    verdicts = {uid: is_alive(meta) for uid, meta in census.items()}
    present: dict[tuple[Any, ...], int] = {}
    for meta in census.values():
        present[_who(meta)] = max(number(meta, "turn"), present.get(_who(meta), 0))
    return HostProcesses(
        living=[uid for uid, meta in census.items() if verdicts[uid] and number(meta, "turn") == present[_who(meta)]],
        dead=[uid for uid, alive in verdicts.items() if alive is False],
    )


def _who(meta: Mapping[str, Any]) -> tuple[Any, ...]:
    return meta.get("host"), meta.get("pid"), meta.get("started")


def number(meta: Mapping[str, Any], name: str) -> int:
    """A number that a process reports of itself, such as the leases "held"; 0 where it reports none."""
    found = meta.get(name)
    return found if type(found) is int else 0
