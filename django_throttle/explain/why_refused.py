"""The full explanation for a caller: the predicted decision, recent refusals and open sockets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from django_throttle.connections.overview import poll_overview
from django_throttle.explain import refusals
from django_throttle.explain.find_caller import UnknownHash, find_caller, known_caller
from django_throttle.explain.predict import Explanation, explain
from django_throttle.explain.refusals import Refusal
from django_throttle.models import ThrottleOverride
from django_throttle.observe.reports import ident_for_logs
from django_throttle.rulebook import sources
from django_throttle.rulebook.coverage import HypotheticalCall
from django_throttle.rulebook.snapshot import Snapshot
from django_throttle.stores import AnyStore

MAX_LISTED_REFUSALS: Final = 20
GROUP_KEY: Final = attrgetter("outcome", "scope", "method", "event", "rule", "reason")


class RefusalGroup(NamedTuple):
    """Refusals of the same call by the same rule for the same reason."""

    #: Number of refusals.
    times: int
    last: Refusal


@dataclass(frozen=True, slots=True)
class CallerExplanation:
    """Predicted decision, recent refusals and open sockets of a caller."""

    #: The beginning of the caller's ident hash, as in logs.
    tag: str
    #: None if only recorded refusals have this hash, so that the ident is unknown.
    explanation: Explanation | None
    recent: Sequence[Refusal] = ()
    #: The overrides of the explanation.
    rows: Sequence[ThrottleOverride] = ()
    #: The number of the caller's open sockets, in the processes that have answered.
    open: int = 0
    #: True if all processes have answered.
    is_whole: bool = True

    @property
    def refusal_groups(self) -> list[RefusalGroup]:
        """The recent refusals, grouped, the latest group first."""
        grouped = [list(group) for _, group in groupby(sorted(self.recent, key=GROUP_KEY), GROUP_KEY)]
        groups = [RefusalGroup(len(group), max(group, key=attrgetter("at"))) for group in grouped]
        return sorted(groups, key=lambda group: group.last.at, reverse=True)[:MAX_LISTED_REFUSALS]

    def as_json(self) -> dict[str, Any]:
        """Return the output of ``throttle_explain --json``. ``would`` is None without an explanation."""
        unknown: dict[str, Any] = {"ident": self.tag, "would": None, "rules": []}
        explanation = unknown if self.explanation is None else self.explanation.as_json()
        reasons = {row.pk: row.reason for row in self.rows}
        of_rules = [rule["override"] for rule in explanation["rules"] if rule["override"]]
        for override in [*explanation.get("overrides", ()), *of_rules]:
            override["reason"] = reasons.get(override["number"], "")
        recent = [refusal.as_json() for refusal in self.recent[:MAX_LISTED_REFUSALS]]
        connections = {"open": self.open, "all_processes": self.is_whole}
        return {**explanation, "tag": self.tag, "recent": recent, "connections": connections}


def explain_caller(
    store: AnyStore, snapshot: Snapshot, call: HypotheticalCall, typed: str, wait: float = 0.0
) -> CallerExplanation:
    """Return the explanation for a typed caller. Wait ``wait`` seconds for the open sockets of other processes.

    Raise ValidationError if the text names no caller, and StoreError if the store fails.
    """
    try:
        caller = find_caller(typed, snapshot, store)
    except UnknownHash:
        tag = typed.strip().lower()
        recent = refusals.recent(store, tag)
        idents = {ident for refusal in recent for ident in refusal.tags.values() if ident_for_logs(ident) == tag}
        if not idents and recent:
            return CallerExplanation(tag, None, refusals.recent(store, tag, call.scope))
        if not idents:
            raise
        caller = known_caller(idents.pop())
    explanation = explain(store, snapshot, call, caller)
    numbers = [override.number for override in explanation.overrides]
    rows = ThrottleOverride.objects.using(sources.alias()).filter(pk__in=numbers) if numbers else ()
    overview = list(poll_overview(store, f'"{caller.name}"', wait))[-1]
    return CallerExplanation(
        tag=ident_for_logs(caller.name),
        explanation=explanation,
        recent=refusals.recent(store, caller.name, call.scope),
        rows=sorted(rows, key=lambda row: numbers.index(row.pk)),
        open=overview.open,
        is_whole=overview.is_whole,
    )
