"""Hints at rules that are useless, too strict, or meet nobody: by what was recorded, and by the other rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django_throttle.console.recording.cells import Minute
from django_throttle.console.recording.read import Sample
from django_throttle.core import Rule
from django_throttle.core.scopes import covers, split_scopes
from django_throttle.core.texts import Text, gettext_noop, translatable, translatable_plural, with_commas
from django_throttle.rulebook import Snapshot
from django_throttle.rulebook.coverage import stricter

SOON, LONG = timedelta(days=1), timedelta(days=29)  # recorded for so long, a rule without calls, or refusals, is odd
STRICT_SHARE: Final = 0.1  # of a caller's calls; who is refused more is not meant to be, where there are many of them
STRICT_IDENTS: Final = 20
# The events whose scopes are those of routes and consumers.
OF_SITE: Final = frozenset(("request", "inflight", "connect", "connection", "message", "send"))


@dataclass(frozen=True, slots=True)
class Hints:
    """What strikes about rules of a snapshot; ``known`` is for how long any rule has been recorded.

    ``sampled`` are decisions of the last day, and ``scopes`` those of all routes and consumers.
    """

    snapshot: Snapshot
    known: timedelta
    sampled: Sample
    scopes: frozenset[str]

    def of(self, rule: Rule, recorded: Minute) -> list[str]:
        """About one rule, of which this was recorded in all the time; none about one that is off."""
        return [*self._of(rule, recorded)] if rule.enabled else []

    def _of(self, rule: Rule, recorded: Minute) -> Iterator[str]:
        if not recorded.calls and OF_SITE.issuperset(rule.events) and not self._covers_any(rule, self.scopes):
            scopes = with_commas(rule.scopes)
            yield translatable("No route or consumer that was found has its scope ({scopes}).", scopes=scopes)
        elif not recorded.calls and self.known >= SOON:
            why = self._why_nothing(rule)
            yield translatable("It has decided nothing in {days}: {why}.", days=_days(self.known), why=why)
        if (other := stricter(self.snapshot, rule)) is not None:
            pattern = gettext_noop(
                "It never refuses first: rule {rule!r} counts the same calls, and is as strict or stricter."
            )
            yield translatable(pattern, rule=other.name)
        elif self.known >= LONG and recorded.calls and not recorded.refused and not recorded.shadowed:
            yield translatable("It has refused nothing in {days}.", days=_days(self.known))
        if self.known >= SOON and (number := refused_idents(self.sampled, rule.name)) > STRICT_IDENTS:
            pattern = gettext_noop(
                "In the last day it refused more than {share:.0%} of the calls of about {count:,} callers."
            )
            yield translatable(pattern, share=STRICT_SHARE, count=number)

    def _why_nothing(self, rule: Rule) -> str:
        calls = {one.scope for one in self.sampled.whole if one.event in rule.events}
        if self._covers_any(rule, calls):
            pattern = gettext_noop(
                "there were calls in its scope, and none matched its key ({key}), methods or audience"
            )
            return translatable(pattern, key=rule.key)
        return translatable("its scope or key matches nobody")

    @staticmethod
    def _covers_any(rule: Rule, scopes: Sequence[str] | frozenset[str] | set[str]) -> bool:
        return "*" in split_scopes(rule.scopes)[0] or any(covers(rule.scopes, scope) for scope in scopes)


def refused_idents(sampled: Sample, rule: str) -> int:
    """About how many idents were refused more than STRICT_SHARE of their calls by the rule."""
    calls: dict[str, int] = {}
    refused: dict[str, int] = {}
    for one in sampled.whole:
        if (tag := one.tags.get(rule)) is not None:
            calls[tag] = calls.get(tag, 0) + 1
            refused[tag] = refused.get(tag, 0) + (one.outcome == "refused" and one.rule == rule)
    return round(sum(refused[tag] > STRICT_SHARE * calls[tag] for tag in calls) / sampled.shares["whole"])


def _days(span: timedelta) -> Text:
    return translatable_plural("{count} day", "{count} days", span.days)
