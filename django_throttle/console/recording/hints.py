"""Hints at rules that have no effect, or are too strict, by their records and by the other rules."""

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

UNUSED_AFTER: Final = timedelta(days=1)  # time of recording after which a rule without calls has a hint
NEVER_REFUSED_AFTER: Final = timedelta(days=29)  # the same for a rule without refusals
# A rule that refuses more than this share of the calls of more than this number of callers has a hint.
STRICT_SHARE: Final = 0.1
STRICT_IDENTS: Final = 20
# Events whose scopes are routes and consumers.
SITE_EVENTS: Final = frozenset(("request", "inflight", "connect", "connection", "message", "send"))


@dataclass(frozen=True, slots=True)
class Hints:
    """Maker of hints at rules of a snapshot."""

    snapshot: Snapshot
    recorded_for: timedelta  #: time for which any rule was recorded
    sample: Sample  #: decisions of the last day
    scopes: frozenset[str]  #: of all routes and consumers

    def for_rule(self, rule: Rule, recorded: Minute) -> list[str]:
        """Return hints at an enabled rule with these records of the whole time. Return [] for a disabled rule."""
        return [*self._hints(rule, recorded)] if rule.enabled else []

    def _hints(self, rule: Rule, recorded: Minute) -> Iterator[str]:
        if not recorded.calls and SITE_EVENTS.issuperset(rule.events) and not self._covers_any(rule, self.scopes):
            scopes = with_commas(rule.scopes)
            yield translatable("No route or consumer that was found has its scope ({scopes}).", scopes=scopes)
        elif not recorded.calls and self.recorded_for >= UNUSED_AFTER:
            reason = self._why_unused(rule)
            yield translatable("It has decided nothing in {days}: {why}.", days=_days(self.recorded_for), why=reason)
        if (other := stricter(self.snapshot, rule)) is not None:
            pattern = gettext_noop(
                "It never refuses first: rule {rule!r} counts the same calls, and is as strict or stricter."
            )
            yield translatable(pattern, rule=other.name)
        elif (
            self.recorded_for >= NEVER_REFUSED_AFTER and recorded.calls and not (recorded.refused or recorded.shadowed)
        ):
            yield translatable("It has refused nothing in {days}.", days=_days(self.recorded_for))
        if self.recorded_for >= UNUSED_AFTER and (number := refused_idents(self.sample, rule.name)) > STRICT_IDENTS:
            pattern = gettext_noop(
                "In the last day it refused more than {share:.0%} of the calls of about {count:,} callers."
            )
            yield translatable(pattern, share=STRICT_SHARE, count=number)

    def _why_unused(self, rule: Rule) -> str:
        scopes = {call.scope for call in self.sample.whole if call.event in rule.events}
        if self._covers_any(rule, scopes):
            pattern = gettext_noop(
                "there were calls in its scope, and none matched its key ({key}), methods or audience"
            )
            return translatable(pattern, key=rule.key)
        return translatable("its scope or key matches nobody")

    @staticmethod
    def _covers_any(rule: Rule, scopes: Sequence[str] | frozenset[str] | set[str]) -> bool:
        return "*" in split_scopes(rule.scopes)[0] or any(covers(rule.scopes, scope) for scope in scopes)


def refused_idents(sample: Sample, rule: str) -> int:
    """Return an estimate of the number of idents of which the rule refused more than STRICT_SHARE of the calls."""
    calls: dict[str, int] = {}
    refused: dict[str, int] = {}
    for call in sample.whole:
        if (tag := call.tags.get(rule)) is not None:
            calls[tag] = calls.get(tag, 0) + 1
            refused[tag] = refused.get(tag, 0) + (call.outcome == "refused" and call.rule == rule)
    return round(sum(refused[tag] > STRICT_SHARE * calls[tag] for tag in calls) / sample.shares["whole"])


def _days(span: timedelta) -> Text:
    return translatable_plural("{count} day", "{count} days", span.days)
