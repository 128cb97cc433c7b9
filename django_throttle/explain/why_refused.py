"""The full explanation for a caller: the predicted decision, recent refusals and open sockets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from django.utils import timezone

from django_throttle.connections.overview import poll_overview
from django_throttle.core.texts import gettext_noop, listed, sentences, translatable, translatable_plural
from django_throttle.explain import refusals
from django_throttle.explain.find_caller import UnknownHash, find_caller, known_caller, unknown_reference
from django_throttle.explain.predict import Explanation, explain
from django_throttle.explain.refusals import MAX_RECENT_REFUSALS, Refusal
from django_throttle.models import ThrottleOverride
from django_throttle.observe.reports import ident_for_logs
from django_throttle.rulebook import sources
from django_throttle.rulebook.coverage import HypotheticalCall
from django_throttle.rulebook.snapshot import Snapshot
from django_throttle.stores import AnyStore
from django_throttle.translated import local, to_the_second

MAX_LISTED_REFUSALS: Final = 20
HOUR: Final = timedelta(hours=1)
GROUP_KEY: Final = attrgetter("outcome", "scope", "method", "event", "rule", "reason")


class RefusalGroup(NamedTuple):
    """Refusals of the same call by the same rule for the same reason."""

    times: int  #: number of refusals
    last: Refusal


@dataclass(frozen=True, slots=True)
class CallerExplanation:
    """Predicted decision, recent refusals and open sockets of a caller."""

    reference: str  #: beginning of the caller's ident hash, as in logs and refusals
    explanation: Explanation | None  #: None if only recorded refusals have this hash, so that the ident is unknown
    recent: Sequence[Refusal] = ()
    rows: Sequence[ThrottleOverride] = ()  #: overrides of the explanation
    open: int = 0  #: number of the caller's open sockets, in the processes that have answered
    is_whole: bool = True  #: True if all processes have answered

    @property
    def sentence(self) -> str:
        """The answer in a line: the recorded refusals, then the prediction for a call now."""
        if self.explanation is not None:
            return sentences([self._refused_in_words(), self.explanation.sentence])
        unknown = unknown_reference(self.reference)
        return sentences([self._refused_in_words(), unknown])

    @property
    def refused_by(self) -> list[str]:
        """The names of the rules that refused lately, first the one that refused most."""
        return [rule for rule, _ in Counter(refusal.rule for refusal in self._latest_refusals()).most_common()]

    def _latest_refusals(self) -> list[Refusal]:
        """Return the refusals of the last hour, or if there are none, of the last day."""
        refused = [refusal for refusal in self.recent if refusal.outcome == "refused"]
        hour_ago = datetime.fromtimestamp(timezone.now().timestamp(), UTC) - HOUR
        return [refusal for refusal in refused if refusal.at > hour_ago] or refused

    def _refused_in_words(self) -> str:
        """Return the number of refusals, the time of the last one and the rules, or "" if no app records refusals."""
        if refusals.find_refusals is None:
            return ""
        latest = self._latest_refusals()
        if not latest:
            return translatable("Not refused in the last day.")
        last, now = max(refusal.at for refusal in latest), timezone.now().timestamp()
        if now - last.timestamp() < HOUR.total_seconds():
            pattern = gettext_noop("Refused {times} in the last hour, last at {at}, by rule {rules}.")
            at = f"{local(last):%H:%M:%S}"
        else:
            pattern = gettext_noop("Refused {times} in the last day, last at {at}, by rule {rules}.")
            at = to_the_second(last)
        is_exact = len(self.recent) < MAX_RECENT_REFUSALS and all(refusal.weight == 1 for refusal in latest)
        times = translatable_plural("{count:,} time", "{count:,} times", len(latest))
        times = times if is_exact else translatable("at least {times}", times=times)
        return translatable(pattern, times=times, at=at, rules=listed(self.refused_by))

    @property
    def refusal_groups(self) -> list[RefusalGroup]:
        """The recent refusals, grouped, the latest group first."""
        grouped = [list(group) for _, group in groupby(sorted(self.recent, key=GROUP_KEY), GROUP_KEY)]
        groups = [RefusalGroup(len(group), max(group, key=attrgetter("at"))) for group in grouped]
        return sorted(groups, key=lambda group: group.last.at, reverse=True)[:MAX_LISTED_REFUSALS]

    def as_json(self) -> dict[str, Any]:
        """Return the output of ``throttle_explain --json``. ``would`` is None without an explanation."""
        unknown: dict[str, Any] = {"ident": self.reference, "would": None, "rules": []}
        explanation = unknown if self.explanation is None else self.explanation.as_json()
        reasons = {row.pk: row.reason for row in self.rows}
        of_rules = [rule["override"] for rule in explanation["rules"] if rule["override"]]
        for override in [*explanation.get("overrides", ()), *of_rules]:
            override["reason"] = reasons.get(override["number"], "")
        recent = [refusal.as_json() for refusal in self.recent[:MAX_LISTED_REFUSALS]]
        connections = {"open": self.open, "all_processes": self.is_whole}
        return {**explanation, "reference": self.reference, "recent": recent, "connections": connections}


def explain_caller(
    store: AnyStore, snapshot: Snapshot, call: HypotheticalCall, typed: str, wait: float = 0.0
) -> CallerExplanation:
    """Return the explanation for a typed caller. Wait ``wait`` seconds for the open sockets of other processes.

    Raise ValidationError if the text names no caller, and StoreError if the store fails.
    """
    try:
        caller = find_caller(typed, snapshot, store)
    except UnknownHash:
        reference = typed.strip().lower()
        recent = refusals.recent(store, reference)
        idents = {ident for refusal in recent for ident in refusal.tags.values() if ident_for_logs(ident) == reference}
        if not idents and recent:
            return CallerExplanation(reference, None, refusals.recent(store, reference, call.scope))
        if not idents:
            raise
        caller = known_caller(idents.pop())
    explanation = explain(store, snapshot, call, caller)
    numbers = [override.number for override in explanation.overrides]
    rows = ThrottleOverride.objects.using(sources.alias()).filter(pk__in=numbers) if numbers else ()
    overview = list(poll_overview(store, f'"{caller.name}"', wait))[-1]
    return CallerExplanation(
        reference=ident_for_logs(caller.name),
        explanation=explanation,
        recent=refusals.recent(store, caller.name, call.scope),
        rows=sorted(rows, key=lambda row: numbers.index(row.pk)),
        open=overview.open,
        is_whole=overview.is_whole,
    )
