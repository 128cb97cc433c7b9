"""Effects of an edit of a rule on its counts: they are kept, converted, or start at zero."""

from __future__ import annotations

from typing import Final

from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.rule import Rule
from django_throttle.core.texts import translatable

COUNTS_ON: Final = translatable("What was already used still counts.")
STARTS_AFRESH: Final = translatable("Counts start afresh.")

Pair = tuple[Rule, Rule]  # former rule of one rate, and the rule that takes over its counts


def takeovers(old: Rule, new: Rule) -> tuple[Pair, ...]:
    """Return the parts of an edited rule whose counts are converted, from window to window or from bucket to bucket.

    Parts that keep their short id keep their counts without a conversion.
    """
    old_ids, new_ids = {part.id for part in old.parts}, {part.id for part in new.parts}
    removed = [part for part in old.parts if part.id not in new_ids]
    added = [part for part in new.parts if part.id not in old_ids]
    is_takeover = len(removed) == len(added) == 1 and _is_convertible(removed[0], added[0])
    return ((removed[0], added[0]),) if is_takeover else ()


def counts_in_words(old: Rule, new: Rule) -> str:
    """Return a sentence about the effect of an edit on counts; empty if there is none."""
    if old.key != new.key:
        return STARTS_AFRESH
    counted_ids = {part.id for part in old.parts} | {part.id for _, part in takeovers(old, new)}
    if any(part.id not in counted_ids for part in new.parts):
        return STARTS_AFRESH
    is_same = [part.params for part in old.parts] == [part.params for part in new.parts]
    return "" if is_same and old.holds_slots == new.holds_slots else COUNTS_ON


def _is_convertible(old: Rule, new: Rule) -> bool:
    if any(
        rule.holds_slots or rule.decided_locally or rule.is_queue or rule.key == "connection" for rule in (old, new)
    ):
        return False
    return len({(rule.key, rule.unit, ALGORITHMS[rule.algorithm].is_bucket) for rule in (old, new)}) == 1


def period(old: Rule, new: Rule) -> float:
    """Return the seconds after an edit for which earlier use can count under the new rule."""
    # Twice, because a sliding window also counts the window before.
    return min(2 * _quota_seconds(old), _quota_seconds(new))


def _quota_seconds(rule: Rule) -> float:
    return rule.params.quota_seconds(rule.params.limit, rule.window or 0.0)
