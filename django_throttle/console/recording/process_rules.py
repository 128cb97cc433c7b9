"""Reports of each process, every two seconds: its rules, suppressed idents of dampers, and circuit breakers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from django_throttle import rulebook
from django_throttle.console.recording import redis_keys
from django_throttle.local import process_identity
from django_throttle.local.process_identity import number
from django_throttle.local.shared_clock import shared_clock
from django_throttle.stores import AnyStore, RedisStore
from django_throttle.stores.redis.pool import text
from django_throttle.translated import written

SILENT_SECONDS: Final = 5.0  # age of the last report of a silent process
FORGOTTEN_SECONDS: Final = 120.0  # age of reports that are ignored
SETTLE_SECONDS: Final = 3.0  # time for a new version to reach all processes
MAX_DAMPED_IDENTS: Final = 20  # in a report, and in the overview


class Damped(NamedTuple):
    """Ident that a damper suppresses."""

    rule: str
    tag: str  #: ident hash
    factor: float  #: share of the calls that is refused
    processes: int  #: number of processes that suppress it

    @property
    def percent(self) -> str:
        return written(self.factor, ".1%")


class ProcessRules(NamedTuple):
    """Report of a process. Times are in seconds since 1970."""

    uid: str
    host: str
    pid: int
    version: str  #: of its rules
    since: float  #: when the rules took effect
    reported_at: float
    state: str  #: "live", "lags" or "silent"
    after: float | None = None  #: seconds from the edit until the rules took effect, if known
    open_breakers: int = 0
    dampers: tuple[Damped, ...] = ()
    clock: float = 0.0  #: seconds that Redis' clock is ahead of the host's; 0.0 up to a second

    @property
    def since_at(self) -> datetime:
        return datetime.fromtimestamp(self.since, UTC)

    def as_json(self) -> dict[str, object]:
        return {name: value for name, value in self._asdict().items() if name != "dampers"}


class RulesReporter:
    """Reports the rules of this process. Used by one thread."""

    def __init__(self, store: RedisStore, uid: str) -> None:
        self.store, self._uid = store, uid

    def __call__(self) -> None:
        """Send a report. Raise StoreError."""
        snapshot, (since, after) = rulebook.loaded(), rulebook.effective_since()
        report = {
            **process_identity.read(process_identity.describe(0)),
            "version": snapshot.version if snapshot else "",
            "since": since,
            "after": after,
            "reported_at": shared_clock.now(),
            "clock": round(shared_clock.offset, 1),
            "open_breakers": self.store.open_breakers,
            "dampers": own_damped(self.store),
        }
        self._send(json.dumps(report))

    def end(self) -> None:
        """Remove the report, because the process ends and is not silent."""
        self._send("")

    def _send(self, report: str) -> None:
        key = self.store.process_key("rec:processes")
        self.store.call("report_rules", [key], [self._uid, report, redis_keys.SEEN_TTL_MS])


def process_rules(store: AnyStore) -> list[ProcessRules]:
    """Return the reports of processes, the lagging and silent processes first. Return [] for a memory store.

    Raise StoreError.
    """
    if not store.is_remote:
        return []
    reply = store.call("read_cells", [store.process_key("rec:processes")], [])
    now = shared_clock.now()
    pairs = zip(map(text, reply[::2]), map(text, reply[1::2]), strict=True)
    reports = [_process(uid, process_identity.read(report), now) for uid, report in pairs]
    processes = [
        process
        for process in reports
        if process is not None and now - process.reported_at < FORGOTTEN_SECONDS and process.version
    ]
    newest = newest_of(processes)
    if newest is not None and now - newest.since > SETTLE_SECONDS:
        processes = [
            process._replace(state="lags") if process.state == "live" and process.version != newest.version else process
            for process in processes
        ]
    return sorted(processes, key=lambda process: (process.state == "live", process.host, process.pid))


def newest_of(processes: Iterable[ProcessRules]) -> ProcessRules | None:
    """Return the live process whose rules took effect last, or None."""
    live = [process for process in processes if process.state == "live"]
    return max(live, key=lambda process: process.since, default=None)


def _process(uid: str, report: dict[str, Any], now: float) -> ProcessRules | None:
    try:
        at, since = float(report["reported_at"]), float(report["since"])
        host, pid, version = str(report.get("host")).partition("/")[0], int(report["pid"]), str(report["version"])
        after = None if report.get("after") is None else float(report["after"])
    except (KeyError, TypeError, ValueError):
        return None
    state = "silent" if now - at > SILENT_SECONDS else "live"
    breakers, dampers = number(report, "open_breakers"), _dampers(report.get("dampers"))
    clock = report.get("clock")
    clock = float(clock) if isinstance(clock, int | float) else 0.0
    return ProcessRules(uid, host[:100], pid, version[:12], since, at, state, after, breakers, dampers, clock)


def own_damped(store: AnyStore) -> list[Damped]:
    """Return the idents that the dampers of this process suppress."""
    suppressed = store.local_limits.suppressed(MAX_DAMPED_IDENTS)
    return [Damped(rule, redis_keys.tag_of(ident), factor, 1) for rule, ident, factor in suppressed]


def damped(processes: Iterable[ProcessRules]) -> list[Damped]:
    """Return the idents that these processes suppress, with their highest factor, the highest factor first."""
    merged: dict[tuple[str, str], Damped] = {}
    for ident in (ident for process in processes if process.state != "silent" for ident in process.dampers):
        earlier = merged.get(ident[:2], ident._replace(factor=0.0, processes=0))
        factor = max(earlier.factor, ident.factor)
        merged[ident[:2]] = ident._replace(factor=factor, processes=earlier.processes + 1)
    return sorted(merged.values(), key=lambda ident: (-ident.factor, ident.rule, ident.tag))[:MAX_DAMPED_IDENTS]


def _dampers(entries: Any) -> tuple[Damped, ...]:
    try:
        return tuple([Damped(str(rule), str(tag), float(factor), 1) for rule, tag, factor, _ in entries])
    except (TypeError, ValueError):  # a process of an earlier release
        return ()
