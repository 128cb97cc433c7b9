"""Reports of each process, every two seconds: its rules, whom its dampers suppress, and its circuit breakers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from django_throttle import rulebook
from django_throttle.console.recording import places
from django_throttle.local import process_identity
from django_throttle.local.process_identity import number
from django_throttle.local.shared_clock import shared_clock
from django_throttle.stores import AnyStore, RedisStore
from django_throttle.stores.redis.pool import text
from django_throttle.translated import written

SILENT_SECONDS: Final = 5.0  # a process that lives tells its rules every two
FORGOTTEN_SECONDS: Final = 120.0
SETTLED_SECONDS: Final = 3.0  # for which a new version may be under way
MOST_DAMPED: Final = 20  # that one process tells of, and that are shown


class Damped(NamedTuple):
    """Of whom a damper refuses a share now, by its tag; so many ``processes`` say so."""

    rule: str
    tag: str
    factor: float
    processes: int

    @property
    def percent(self) -> str:
        return written(self.factor, ".1%")


class ProcessRules(NamedTuple):
    """A process and its rules; ``since`` and ``told`` are Unix time, ``state`` "live", "lags" or "silent".

    ``after`` is how many seconds after their edit it had them, None where that is not known. ``clock`` is by how many
    seconds Redis' clock is ahead of the host's, 0.0 within a second.
    """

    uid: str
    host: str
    pid: int
    version: str
    since: float
    told: float
    state: str
    after: float | None = None
    open_breakers: int = 0
    dampers: tuple[Damped, ...] = ()
    clock: float = 0.0

    @property
    def since_at(self) -> datetime:
        return datetime.fromtimestamp(self.since, UTC)

    def as_json(self) -> dict[str, object]:
        return {name: value for name, value in self._asdict().items() if name != "dampers"}


class RulesReporter:
    """Tells the rules of this process; used by one thread."""

    def __init__(self, store: RedisStore, uid: str) -> None:
        self.store, self._uid = store, uid

    def __call__(self) -> None:
        """Tell them. Raises StoreError."""
        snapshot, (since, after) = rulebook.loaded(), rulebook.effective_since()
        told = {
            **process_identity.read(process_identity.describe(0)),
            "version": snapshot.version if snapshot else "",
            "since": since,
            "after": after,
            "told": shared_clock.now(),
            "clock": round(shared_clock.offset, 1),
            "open_breakers": self.store.open_breakers,
            "dampers": own_damped(self.store),
        }
        self._tell(json.dumps(told))

    def end(self) -> None:
        """This process ends: it is not to be called silent."""
        self._tell("")

    def _tell(self, told: str) -> None:
        self.store.call("tell_rules", [self.store.process_key("rec:processes")], [self._uid, told, places.SEEN_TTL_MS])


def process_rules(store: AnyStore) -> list[ProcessRules]:
    """What processes told, those first that lag or are silent. Raises StoreError; empty for a store in memory."""
    if not store.is_remote:
        return []
    reply = store.call("read_cells", [store.process_key("rec:processes")], [])
    now = shared_clock.now()
    read = [(text(uid), process_identity.read(text(told))) for uid, told in zip(reply[::2], reply[1::2], strict=True)]
    known = [_process(uid, told, now) for uid, told in read]
    recent = [one for one in known if one is not None and now - one.told < FORGOTTEN_SECONDS and one.version]
    newest = newest_of(recent)
    if newest is not None and now - newest.since > SETTLED_SECONDS:
        lags = [one.state == "live" and one.version != newest.version for one in recent]
        recent = [one._replace(state="lags") if late else one for one, late in zip(recent, lags, strict=True)]
    return sorted(recent, key=lambda one: (one.state == "live", one.host, one.pid))


def newest_of(processes: Iterable[ProcessRules]) -> ProcessRules | None:
    """The live process that has other rules than before since the shortest time; None of none."""
    return max((one for one in processes if one.state == "live"), key=lambda one: one.since, default=None)


def _process(uid: str, told: dict[str, Any], now: float) -> ProcessRules | None:
    try:
        at, since = float(told["told"]), float(told["since"])
        host, pid, version = str(told.get("host")).partition("/")[0], int(told["pid"]), str(told["version"])
        after = None if told.get("after") is None else float(told["after"])
    except (KeyError, TypeError, ValueError):
        return None
    state = "silent" if now - at > SILENT_SECONDS else "live"
    breakers, dampers = number(told, "open_breakers"), _dampers(told.get("dampers"))
    clock = _seconds(told.get("clock"))
    return ProcessRules(uid, host[:100], pid, version[:12], since, at, state, after, breakers, dampers, clock)


def _seconds(told: object) -> float:
    return float(told) if isinstance(told, int | float) else 0.0


def own_damped(store: AnyStore) -> list[Damped]:
    """Whom the dampers of this process suppress."""
    return [Damped(rule, places.tag_of(ident), factor, 1)
            for rule, ident, factor in store.local_limits.suppressed(MOST_DAMPED)]  # fmt: skip


def damped(processes: Iterable[ProcessRules]) -> list[Damped]:
    """Whom the dampers of these processes suppress, by the highest factor of any, the highest first."""
    found: dict[tuple[str, str], Damped] = {}
    for each in (one for process in processes if process.state != "silent" for one in process.dampers):
        known = found.get(each[:2], each._replace(factor=0.0, processes=0))
        factor = max(known.factor, each.factor)
        found[each[:2]] = each._replace(factor=factor, processes=known.processes + 1)
    return sorted(found.values(), key=lambda one: (-one.factor, one.rule, one.tag))[:MOST_DAMPED]


def _dampers(told: Any) -> tuple[Damped, ...]:
    try:
        return tuple([Damped(str(rule), str(tag), float(factor), 1) for rule, tag, factor, _ in told])
    except (TypeError, ValueError):  # of a process of an earlier release
        return ()
