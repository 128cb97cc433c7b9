"""What an edit of a rule does to what was counted under it: it counts on, as it is or converted, or starts afresh."""

from __future__ import annotations

from typing import Final

from django_throttle.core.algorithms import ALGORITHMS
from django_throttle.core.rule import Rule
from django_throttle.core.texts import gettext_lazy

COUNTS_ON: Final = gettext_lazy("What was already used still counts.")
STARTS_AFRESH: Final = gettext_lazy("Counts start afresh.")

Pair = tuple[Rule, Rule]  # the former rule of one rate, and the one that takes over what was used under it


def takeovers(old: Rule, new: Rule) -> tuple[Pair, ...]:
    """The parts of an edited rule whose counts have to be converted: from counts to counts, from buckets to buckets.

    What keeps its short id is found where it was.
    """
    before, after = {part.id: part for part in old.parts}, {part.id: part for part in new.parts}
    gone = [part for key, part in before.items() if key not in after]
    come = [part for key, part in after.items() if key not in before]
    is_one = len(gone) == len(come) == 1 and _is_convertible(gone[0], come[0])
    return ((gone[0], come[0]),) if is_one else ()


def counts_in_words(old: Rule, new: Rule) -> str:
    """What becomes of what was used, in a sentence; empty where the edit does not concern it."""
    if old.key != new.key:
        return STARTS_AFRESH
    known = {part.id for part in old.parts} | {part.id for _, part in takeovers(old, new)}
    if any(part.id not in known for part in new.parts):
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
    """For how many seconds after the edit what was used before it can count under the new rule."""
    # A sliding window weighs what was counted in the window before.
    return min(2 * _quota_seconds(old), _quota_seconds(new))


def _quota_seconds(rule: Rule) -> float:
    return rule.params.quota_seconds(rule.params.limit, rule.window or 0.0)
