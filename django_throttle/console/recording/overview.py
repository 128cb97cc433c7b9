"""The overview for operators: recent decisions of each rule, and the rules and the store of each process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from django.utils import timezone

from django_throttle import rulebook
from django_throttle.checks.scopes import Site
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
POINTS: Final = {"hour": (60, 60), "day": (24, 3600)}  # number of a sparkline's points, and seconds of each
DAY: Final = timedelta(days=1)
MONTH: Final = timedelta(days=30)
RECENT: Final = timedelta(minutes=5)


class RuleOverview(NamedTuple):
    """Decisions of a rule in the last hour and day."""

    name: str
    hour: Minute
    day: Minute
    hour_points: list[tuple[int, int]]  #: allowed and refused calls, the oldest first
    day_points: list[tuple[int, int]]
    hints: list[str]

    @property
    def refused(self) -> int:
        """Number of calls refused in the last day."""
        return sum(self.day.refused.values())

    @property
    def refused_share(self) -> float:
        return self.refused / self.day.calls if self.day.calls else 0.0

    @property
    def p99_ms(self) -> float:
        return percentile(self.day.times, 0.99) * 1000

    @property
    def in_words(self) -> Text:
        """Decisions of the last day, in a sentence."""
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
        hour, day = self.hour.as_json(), self.day.as_json()
        del hour["at"], day["at"]
        figures = {"refused_share": self.refused_share, "p99_ms": self.p99_ms, "hints": self.hints}
        return {"name": self.name, "hour": hour, "day": day, **figures}


@dataclass(frozen=True, slots=True)
class Overview:
    """Decisions of some rules, and the state of all processes and the store."""

    rules: list[RuleOverview]
    processes: list[ProcessRules]
    connections: int  #: number of leases of open connections and requests
    open_breakers: int
    dampers: list[Damped]
    recent: Minute  #: decisions of all rules in the last five minutes

    @property
    def in_words(self) -> str:
        """Versions of rules in the processes, lagging and silent processes, and wrong clocks, in words."""
        values = {"some": len(self._newest), "every": len(self.processes), "version": self.version[:8]}
        if self.version and len(self._newest) < len(self.processes):
            pattern = gettext_noop("{some} of {every} processes have version {version} of the rules in force")
        else:
            pattern = gettext_noop("{some} of {every} processes have the same rules in force")
        words = translatable(pattern, **values)
        if self.slowest is not None:
            pattern = gettext_noop("{said}, the slowest {seconds:.1f} s after the edit")
            words = translatable(pattern, said=words, seconds=self.slowest)
        problems = [
            translatable(_PROBLEMS[process.state], pid=process.pid, host=process.host)
            for process in self.processes
            if process.state in _PROBLEMS
        ]
        clocks = {process.host: process.clock for process in self.processes if process.clock}
        for host, seconds in sorted(clocks.items()):
            pattern = _SLOW_CLOCK if seconds > 0 else _FAST_CLOCK
            problems.append(translatable(pattern, host=host, seconds=abs(seconds)))
        for problem in problems:
            words = translatable("{said}; {odd}", said=words, odd=problem)
        return words

    @property
    def version(self) -> str:
        """Version of the newest rules of a live process. Empty if there is no live process."""
        newest = newest_of(self.processes)
        return newest.version if newest else ""

    @property
    def slowest(self) -> float | None:
        """Seconds from the edit until the last live process had the newest rules. None if that is unknown."""
        return max([process.after for process in self._newest if process.after is not None], default=None)

    @property
    def without_store(self) -> int:
        """Number of decisions of the last five minutes without Redis."""
        return self.recent.degraded + self.recent.refused.get(Reason.STORE_FAILED.value, 0)

    @property
    def store_in_words(self) -> str:
        """Circuit breakers, failures and times of the last five minutes, in sentences."""
        calls = self.recent.calls
        breakers = translatable("No circuit breaker is open.")
        if self.open_breakers:
            breakers = translatable_plural(
                "{count} circuit breaker is open.", "{count} circuit breakers are open.", self.open_breakers
            )
        if not calls:
            return sentences([breakers, translatable("No decision of the last five minutes has been reported.")])
        decisions = translatable_plural(
            "{calls:,} decision in the last five minutes: {share:.1%} without Redis, 99 % within {p99:.2f} ms.",
            "{calls:,} decisions in the last five minutes: {share:.1%} without Redis, 99 % within {p99:.2f} ms.",
            calls,
            calls=calls,
            share=self.without_store / calls,
            p99=percentile(self.recent.times, 0.99) * 1000,
        )
        return sentences([breakers, decisions])

    @property
    def _newest(self) -> list[ProcessRules]:
        version = self.version
        return [process for process in self.processes if process.state == "live" and process.version == version]

    def as_json(self) -> dict[str, object]:
        return {
            "rules": [rule.as_json() for rule in self.rules],
            "version": self.version,
            "slowest_seconds": self.slowest,
            "processes": [process.as_json() for process in self.processes],
            "connections": self.connections,
            "open_breakers": self.open_breakers,
            "store": {
                "open_breakers": self.open_breakers,
                "decisions": self.recent.calls,
                "without_store": self.without_store,
                "p99_ms": percentile(self.recent.times, 0.99) * 1000,
            },
            "dampers": [ident._asdict() for ident in self.dampers],
        }


STATES: Final = {"live": translatable("live"), "lags": translatable("lags"), "silent": translatable("silent")}
_PROBLEMS: Final = {
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
    refused = {name: sum(day.refused.values()) for name, day in last_day(store, names).items() if day.calls}
    return sorted(names, key=lambda name: (name not in refused, -refused.get(name, 0)))


def last_day(store: AnyStore, names: Sequence[str]) -> dict[str, Minute]:
    """Return the decisions of the last day of those of these rules that decided anything. Raise StoreError."""
    now = _now()
    recorded = set(recorded_rules(store, now - DAY)).intersection(names)
    return {name: total(cells) for name, cells in hours(store, now - DAY, now + SECOND, recorded).items()}


def _now() -> datetime:
    """Return the time as it is recorded, regardless of USE_TZ."""
    return datetime.fromtimestamp(timezone.now().timestamp(), UTC)


def overview(store: AnyStore, names: Sequence[str]) -> Overview:
    """Return the overview of the rules of these names. Raise StoreError if the store fails."""
    now = _now()
    soon = now + SECOND
    by_minute = minutes(store, now - timedelta(hours=1), soon, names)
    by_hour = hours(store, now - MONTH, soon, names)
    recorded_for = now - min([cells[0].at for cells in by_hour.values() if cells], default=now)
    snapshot = rulebook.current()
    hints = Hints(snapshot, recorded_for, sample(store, now - DAY, soon), Site.read().scopes)
    rules = []
    for name in names:
        rule = snapshot.by_name(name)
        rule_hints = hints.for_rule(rule, total(by_hour[name])) if rule else []
        day = [cell for cell in by_hour[name] if cell.at >= now - DAY]
        points = _points(by_minute[name], now, "hour"), _points(day, now, "day")
        rules.append(RuleOverview(name, total(by_minute[name]), total(day), *points, rule_hints))
    if store.is_remote:
        held = sum(number(meta, "held") for meta in ProcessRecords(store).read_processes().values())
    else:
        held = len(store.leases)
    processes = process_rules(store)
    dampers = damped(processes) if store.is_remote else own_damped(store)
    recent = total([cell for cells in minutes(store, now - RECENT, soon).values() for cell in cells])
    reported_breakers = sum(process.open_breakers for process in processes if process.state != "silent")
    open_breakers = max(store.open_breakers, reported_breakers)
    return Overview(rules, processes, held, open_breakers, dampers, recent)


def _points(cells: Sequence[Minute], now: datetime, span: str) -> list[tuple[int, int]]:
    count, seconds = POINTS[span]
    last, points = int(now.timestamp()) // seconds, [(0, 0)] * count
    for cell in cells:
        index = count - 1 - (last - int(cell.at.timestamp()) // seconds)
        if 0 <= index < count:
            points[index] = cell.allowed, sum(cell.refused.values())
    return points
