"""All that an operator is told of a caller: what would happen now, what was refused lately, what is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from django_throttle.connections.overview import poll_overview
from django_throttle.explain import refusals
from django_throttle.explain.find_caller import UnknownTag, find_caller, known_caller
from django_throttle.explain.predict import Explanation, explain
from django_throttle.explain.refusals import Refusal
from django_throttle.models import ThrottleOverride
from django_throttle.observe.reports import ident_for_logs
from django_throttle.rulebook import sources
from django_throttle.rulebook.coverage import HypotheticalCall
from django_throttle.rulebook.snapshot import Snapshot
from django_throttle.stores import AnyStore

LIMIT: Final = 20  # refusals listed
SAME: Final = attrgetter("outcome", "scope", "method", "event", "rule", "reason")


class Alike(NamedTuple):
    """Refusals of the same call by the same rule and for the same reason, and the last of them."""

    times: int
    last: Refusal


@dataclass(frozen=True, slots=True)
class Answer:
    """``explanation`` is None where only the tag of the caller is known, by what was refused.

    ``open`` are the caller's sockets, by the processes that have answered: all of them where ``is_whole``.
    """

    tag: str
    explanation: Explanation | None
    recent: Sequence[Refusal] = ()
    rows: Sequence[ThrottleOverride] = ()
    open: int = 0
    is_whole: bool = True

    @property
    def alike(self) -> list[Alike]:
        """What was refused lately, the same once; the latest first."""
        groups = [list(same) for _, same in groupby(sorted(self.recent, key=SAME), SAME)]
        found = [Alike(len(same), max(same, key=attrgetter("at"))) for same in groups]
        return sorted(found, key=lambda one: one.last.at, reverse=True)[:LIMIT]

    def as_json(self) -> dict[str, Any]:
        """As ``throttle_explain --json`` prints it; ``would`` is None for a tag alone."""
        told = self.explanation
        nothing: dict[str, Any] = {"ident": self.tag, "would": None, "rules": []}
        found = nothing if told is None else told.as_json()
        reasons = {row.pk: row.reason for row in self.rows}
        for override in [*found.get("overrides", ()), *(one["override"] for one in found["rules"] if one["override"])]:
            override["reason"] = reasons.get(override["number"], "")
        refusals = [one.as_json() for one in self.recent[:LIMIT]]
        connections = {"open": self.open, "all_processes": self.is_whole}
        return {**found, "tag": self.tag, "recent": refusals, "connections": connections}


def answer(store: AnyStore, snapshot: Snapshot, call: HypotheticalCall, typed: str, wait: float = 0.0) -> Answer:
    """Find who is meant, and tell all of it; waits ``wait`` seconds for processes to say what they have open.

    Raises ValidationError where nobody is meant, and StoreError.
    """
    try:
        caller = find_caller(typed, snapshot, store)
    except UnknownTag:
        tag = typed.strip().lower()
        refused = refusals.recent(store, tag)
        named = {ident for one in refused for ident in one.tags.values() if ident_for_logs(ident) == tag}
        if not named and refused:
            return Answer(tag, None, refusals.recent(store, tag, call.scope))
        if not named:
            raise
        caller = known_caller(named.pop())
    told = explain(store, snapshot, call, caller)
    numbers = [override.number for override in told.overrides]
    rows = ThrottleOverride.objects.using(sources.alias()).filter(pk__in=numbers) if numbers else ()
    overview = list(poll_overview(store, f'"{caller.name}"', wait))[-1]
    return Answer(
        tag=ident_for_logs(caller.name),
        explanation=told,
        recent=refusals.recent(store, caller.name, call.scope),
        rows=sorted(rows, key=lambda row: numbers.index(row.pk)),
        open=overview.open,
        is_whole=overview.is_whole,
    )
