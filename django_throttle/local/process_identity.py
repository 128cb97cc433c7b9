"""Identity of processes: the description that they publish, and whether a process of this host still runs."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


def describe(held: int, renewals: int = 0) -> str:
    """Describe this process as JSON: host, pid, start in ticks since boot, number of leases and of earlier uids."""
    return json.dumps({**_self(os.getpid()), "held": held, "turn": renewals}, separators=(",", ":"))


def read(text: str | bytes) -> dict[str, object]:
    """Return the description of a process from JSON; an empty dict if the text is invalid."""
    try:
        meta = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}


def is_alive(meta: Mapping[str, object]) -> bool | None:
    """Return True if the process runs. Return None if it is unknown: the process is on another host, or hidden.

    A defunct process is dead, and so is a process whose pid now belongs to one with another start.
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
    """Return hostname, pid namespace and boot id, because pids are comparable only within these; empty if unknown."""
    try:
        namespace = (PROC / "self/ns/pid").stat().st_ino
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "" if PROC.is_dir() else socket.gethostname()
    return f"{socket.gethostname()}/{namespace}/{boot}"


def _namespace(host: str) -> str:
    """Return the part of a host that identifies its pids, which containers with other hostnames may share."""
    return host.partition("/")[2] or host


@lru_cache(maxsize=1)
def _self(pid: int) -> dict[str, object]:
    stat = _stat(pid)
    return {"host": host(), "pid": pid, "started": stat[1] if stat else None}


def _stat(pid: int) -> tuple[str, int] | None:
    """Return the state letter and the start of a process; None if they cannot be read. See proc(5), fields 3 and 22."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
        fields = text.rpartition(")")[2].split()  # the name in brackets may contain spaces and brackets
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _is_gone(pid: int) -> bool:
    """Return True only if the kernel reports that there is no such process. A hidden process is not gone."""
    try:
        if os.name == "posix":
            os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


class HostProcesses(NamedTuple):
    """Uids of the processes of this host. Those of other hosts are in neither list."""

    living: list[str]
    dead: list[str]


def processes_of_host(census: Mapping[str, Mapping[str, object]]) -> HostProcesses:
    """Return the processes that this host sees running, and those that have ended.

    A former uid of a running process is in neither list: the process itself removes it, or it expires.
    """
    is_alive_by_uid = {uid: is_alive(meta) for uid, meta in census.items()}
    renewals: dict[tuple[object, ...], int] = {}
    for meta in census.values():
        renewals[_process(meta)] = max(number(meta, "turn"), renewals.get(_process(meta), 0))
    return HostProcesses(
        living=[
            uid
            for uid, meta in census.items()
            if is_alive_by_uid[uid] and number(meta, "turn") == renewals[_process(meta)]
        ],
        dead=[uid for uid, alive in is_alive_by_uid.items() if alive is False],
    )


def _process(meta: Mapping[str, object]) -> tuple[object, ...]:
    return meta.get("host"), meta.get("pid"), meta.get("started")


def number(meta: Mapping[str, object], name: str) -> int:
    """Return a number from a process description, such as the leases "held"; 0 if there is none."""
    value = meta.get(name)
    return value if type(value) is int else 0
