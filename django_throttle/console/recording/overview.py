"""The overview for operators: recent decisions of each rule, and the rules and the store of each process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from django.utils import timezone

from django_throttle import rulebook
from django_throttle.checks.project import site_scopes
from django_throttle.connections.processes import ProcessRecords
from django_throttle.console.recording.cells import Minute, percentile, total
from django_throttle.console.recording.hints import Hints
from django_throttle.console.recording.process_rules import (
    Damped,
    ProcessRules,
    damped,
    newest_of,
    own_damped,
    process_rules,
)
from django_throttle.console.recording.read import hours, minutes, recorded_rules, sample
from django_throttle.core.decision import Reason
from django_throttle.core.texts import Text, gettext_noop, sentences, translatable, translatable_plural
from django_throttle.local.process_identity import number
from django_throttle.stores import AnyStore

SECOND: Final = timedelta(seconds=1)
POINTS: Final = {"hour": (60, 60), "day": (24, 3600)}  # of a sparkline: how many, and seconds each
DAY: Final = timedelta(days=1)
MONTH: Final = timedelta(days=30)
RECENT: Final = timedelta(minutes=5)


class RuleOverview(NamedTuple):
    """A rule, what it decided in the last hour and day, and what strikes about it. Points are the oldest first."""

    name: str
    hour: Minute
    day: Minute
    hour_points: list[tuple[int, int]]  # allowed, refused
    day_points: list[tuple[int, int]]
    hints: list[str]

    @property
    def refused(self) -> int:
        """The number of calls refused in the last day."""
        return sum(self.day.refused.values())

    @property
    def refused_share(self) -> float:
        return self.refused / self.day.calls if self.day.calls else 0.0

    @property
    def p99_ms(self) -> float:
        return percentile(self.day.times, 0.99) * 1000

    @property
    def in_words(self) -> Text:
        """What it decided in the last day."""
        if not self.day.calls:
            return translatable("{rule!r}: no calls in the last day.", rule=self.name)
        return translatable_plural(
            "{rule!r}: {calls:,} call, {share:.1%} refused, 99 % decided in {p99:.2f} ms in the last day.",
            "{rule!r}: {calls:,} calls, {share:.1%} refused, 99 % decided in {p99:.2f} ms in the last day.",
            self.day.calls,
            rule=self.name,
            calls=self.day.calls,
            share=self.refused_share,
            p99=self.p99_ms,
        )

    def as_json(self) -> dict[str, object]:
        spans = {name: {key: value for key, value in of.as_json().items() if key != "at"}
                 for name, of in (("hour", self.hour), ("day", self.day))}  # fmt: skip
        figures = {"refused_share": self.refused_share, "p99_ms": self.p99_ms, "hints": self.hints}
        return {"name": self.name, **spans, **figures}


@dataclass(frozen=True, slots=True)
class Overview:
    """Some of the rules, all processes, open connections and slots, and open circuit breakers.

    ``dampers`` are those of any rule that refuse a share of somebody's calls now, and ``recent`` is what all rules
    decided in the last five minutes.
    """

    rules: list[RuleOverview]
    processes: list[ProcessRules]
    connections: int
    open_breakers: int
    dampers: list[Damped]
    recent: Minute

    @property
    def in_words(self) -> str:
        """How many processes have the newest rules, how long the slowest took, and which have others or are silent."""
        told = {"some": len(self._newest), "every": len(self.processes), "version": self.version[:8]}
        if self.version:
            pattern = gettext_noop("{some} of {every} processes have version {version} of the rules in force")
        else:
            pattern = gettext_noop("{some} of {every} processes have the same rules in force")
        said = translatable(pattern, **told)
        if self.slowest is not None:
            pattern = gettext_noop("{said}, the slowest {seconds:.1f} s after the edit")
            said = translatable(pattern, said=said, seconds=self.slowest)
        for one in self.processes:
            if one.state in _ODD:
                odd = translatable(_ODD[one.state], pid=one.pid, host=one.host)
                said = translatable("{said}; {odd}", said=said, odd=odd)
        for host, seconds in sorted({one.host: one.clock for one in self.processes if one.clock}.items()):
            pattern = _SLOW_CLOCK if seconds > 0 else _FAST_CLOCK
            odd = translatable(pattern, host=host, seconds=abs(seconds))
            said = translatable("{said}; {odd}", said=said, odd=odd)
        return said

    @property
    def version(self) -> str:
        """Of the newest rules that a live process has; empty where none is known."""
        newest = newest_of(self.processes)
        return newest.version if newest else ""

    @property
    def slowest(self) -> float | None:
        """How many seconds after the edit the last live process had them; None where no process has seen the edit."""
        return max([one.after for one in self._newest if one.after is not None], default=None)

    @property
    def without_store(self) -> int:
        """How many decisions of the last five minutes were made without Redis."""
        return self.recent.degraded + self.recent.refused.get(Reason.STORE_FAILED.value, 0)

    @property
    def store_in_words(self) -> str:
        """Circuit breakers, failures and times of the last five minutes."""
        open_now, calls = self.open_breakers, self.recent.calls
        opened = translatable_plural("{count} circuit breaker is open.", "{count} circuit breakers are open.", open_now)
        opened = opened if open_now else translatable("No circuit breaker is open.")
        if not calls:
            return sentences([opened, translatable("No decision of the last five minutes has been reported.")])
        said = translatable_plural(
            "{calls:,} decision in the last five minutes: {share:.1%} without Redis, 99 % within {p99:.2f} ms.",
            "{calls:,} decisions in the last five minutes: {share:.1%} without Redis, 99 % within {p99:.2f} ms.",
            calls,
            calls=calls,
            share=self.without_store / calls,
            p99=percentile(self.recent.times, 0.99) * 1000,
        )
        return sentences([opened, said])

    @property
    def _newest(self) -> list[ProcessRules]:
        return [one for one in self.processes if one.state == "live" and one.version == self.version]

    def as_json(self) -> dict[str, object]:
        return {
            "rules": [one.as_json() for one in self.rules],
            "version": self.version,
            "slowest_seconds": self.slowest,
            "processes": [one.as_json() for one in self.processes],
            "connections": self.connections,
            "open_breakers": self.open_breakers,
            "store": {
                "open_breakers": self.open_breakers,
                "decisions": self.recent.calls,
                "without_store": self.without_store,
                "p99_ms": percentile(self.recent.times, 0.99) * 1000,
            },
            "dampers": [one._asdict() for one in self.dampers],
        }


STATES: Final = {"live": translatable("live"), "lags": translatable("lags"), "silent": translatable("silent")}
_ODD: Final = {
    "silent": gettext_noop("process {pid} on {host} is silent: it has stopped or died"),
    "lags": gettext_noop("process {pid} on {host} has other rules in force"),
}
_SLOW_CLOCK: Final = gettext_noop("the clock of {host} is {seconds:.1f} s behind Redis'")
_FAST_CLOCK: Final = gettext_noop("the clock of {host} is {seconds:.1f} s ahead of Redis'")


def rule_names(store: AnyStore, search: str = "") -> list[str]:
    """Return the names of rules in force that contain the search, first those that refused most in the last day.

    Rules without a call come last. Raise StoreError if the store fails.
    """
    names = [rule.name for rule in rulebook.current().rules if search.casefold() in rule.name.casefold()]
    now = _now()
    recorded = set(recorded_rules(store, now - DAY)).intersection(names)
    days = {name: total(cells) for name, cells in hours(store, now - DAY, now + SECOND, recorded).items()}
    return sorted(names, key=lambda name: _rank(days.get(name)))


def _rank(day: Minute | None) -> tuple[bool, int]:
    return (True, 0) if day is None or not day.calls else (False, -sum(day.refused.values()))


def _now() -> datetime:
    """Return the time as it is recorded, regardless of USE_TZ."""
    return datetime.fromtimestamp(timezone.now().timestamp(), UTC)


def overview(store: AnyStore, names: Sequence[str]) -> Overview:
    """Return the overview of the rules of these names. Raise StoreError if the store fails."""
    now = _now()
    soon = now + SECOND
    by_minute = minutes(store, now - timedelta(hours=1), soon, names)
    by_hour = hours(store, now - MONTH, soon, names)
    known = now - min([cells[0].at for cells in by_hour.values() if cells], default=now)
    snapshot = rulebook.current()
    hints = Hints(snapshot, known, sample(store, now - DAY, soon), frozenset(site_scopes()))
    rules = []
    for name in names:
        rule = snapshot.by_name(name)
        said = hints.of(rule, total(by_hour[name])) if rule else []
        rules.append(_rule(name, by_minute[name], by_hour[name], now, said))
    if store.is_remote:
        held = sum(number(meta, "held") for meta in ProcessRecords(store).read_processes().values())
    else:
        held = len(store.leases)
    processes = process_rules(store)
    dampers = damped(processes) if store.is_remote else own_damped(store)
    recent = total([cell for cells in minutes(store, now - RECENT, soon).values() for cell in cells])
    opened = max(store.open_breakers, sum(one.open_breakers for one in processes if one.state != "silent"))
    return Overview(rules, processes, held, opened, dampers, recent)


def _rule(
    name: str, by_minute: Sequence[Minute], by_hour: Sequence[Minute], now: datetime, hints: list[str]
) -> RuleOverview:
    day = [one for one in by_hour if one.at >= now - DAY]
    points = _points(by_minute, now, "hour"), _points(day, now, "day")
    return RuleOverview(name, total(by_minute), total(day), *points, hints)


def _points(cells: Sequence[Minute], now: datetime, span: str) -> list[tuple[int, int]]:
    count, seconds = POINTS[span]
    last, found = int(now.timestamp()) // seconds, [(0, 0)] * count
    for cell in cells:
        place = count - 1 - (last - int(cell.at.timestamp()) // seconds)
        if 0 <= place < count:
            found[place] = cell.allowed, sum(cell.refused.values())
    return found
