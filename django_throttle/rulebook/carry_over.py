"""Carries what was used over an edit that has a rule count elsewhere: once for each ident, at its next call."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple, TypeVar

from django_throttle.core.commands import Answer, Charge, Charges, Correct, Decide, Entry
from django_throttle.core.edits import period, takeovers
from django_throttle.core.io import Io
from django_throttle.core.rule import Rule
from django_throttle.exceptions import RepeatCommand, StoreError
from django_throttle.runtime import in_child
from django_throttle.stores.redis.timeouts import one_deadline

T = TypeVar("T")

LONGEST: Final = 86_400.0  # seconds that an edit is remembered
MOST: Final = 50_000  # idents that are known to be carried over, by edit
# Microseconds in which processes that carry the same ident over at the same time are known to do the same.
TOGETHER: Final = 4_000_000


@dataclass(slots=True, eq=False)
class Edit:
    """A rule as it was before an edit, until when its counts matter, and the idents whose are carried over.

    Times are seconds on the monotonic clock.
    """

    old: Rule
    since: float
    until: float
    done: set[str] = field(default_factory=set)


class PendingMigration(NamedTuple):
    """A call's charge, to which what its ident used under the former rule is to be added first."""

    edit: Edit
    charge: Charge


Edits = Mapping[str, tuple[Edit, ...]]  # by the short id under which it is counted now
edits: Edits = {}  # empty but after edits
_lock = Lock()  # for who replaces them
in_child(sys.modules[__name__], lambda module: vars(module).update(_lock=Lock()))


def note(old: Callable[[str], Rule | None], rules: Iterable[Rule]) -> None:
    """Rules were edited: remember the ``old`` ones, by their names, whose counts are to be converted."""
    now = monotonic()
    pairs = [(before, rule) for rule in rules if (before := old(rule.name)) is not None and before is not rule]
    changed = [(now, before, rule) for before, rule in pairs if before != rule]
    with _lock:
        _replace(_add_edits(edits, changed), now)


def recall(past: Iterable[tuple[float, Rule, Rule]]) -> None:
    """The same for edits before this process began, the oldest first: how many seconds ago, the rule before, after."""
    now = monotonic()
    recalled = _add_edits({}, [(now - max(0.0, age), before, rule) for age, before, rule in past])
    with _lock:
        _replace({**recalled, **edits}, now)  # what it has seen itself it knows better


def _add_edits(former: Edits, changed: Iterable[tuple[float, Rule, Rule]]) -> Edits:
    """Return the former edits with the changed rules: since when, the rule before, and after."""
    result = dict(former)
    for since, before, rule in changed:
        for was, part in takeovers(before, rule):
            # Whose ident has not called since an earlier edit has its counts where they were before that.
            earlier = [Edit(e.old, e.since, e.until) for e in result.pop(was.id, ()) if e.old.id != part.id]
            result[part.id] = (*earlier, Edit(was, since, since + min(LONGEST, period(was, part))))
    return result


def _replace(new: Edits, now: float) -> None:
    """Put a new mapping of the edits that still matter in place: others read the former without a lock."""
    global edits
    edits = {key: found for key, of_rule in new.items() if (found := tuple([e for e in of_rule if e.until > now]))}


def forget() -> None:
    """Other settings: what was edited before is of no concern."""
    global edits
    edits = {}


def due(charges: Iterable[Charge]) -> list[PendingMigration]:
    """What is to be carried over before these are charged."""
    return list(_due(charges, monotonic()))


def _due(charges: Iterable[Charge], now: float) -> Iterator[PendingMigration]:
    for charge in charges:
        for edit in edits.get(charge.rule.id, ()):
            if charge.cost and now < edit.until and charge.ident not in edit.done:
                yield PendingMigration(edit, charge)


async def carry_first(io: Io, found: Iterable[PendingMigration], decide: Callable[[], Awaitable[T]]) -> T:
    """Carry over, then decide, within one deadline; where the store fails, the decision says what becomes of it."""
    with one_deadline():
        await _carry_all(io, found)
        return await decide()


async def _carry_all(io: Io, found: Iterable[PendingMigration]) -> None:
    """Charge what an ident has used under the former rule, less what it has under the new one already."""
    try:
        for edit, charge in found:
            await _carry(io, edit, charge)
            if len(edit.done) >= MOST:
                edit.done.clear()
            edit.done.add(charge.ident)
    except StoreError:
        return


async def _carry(io: Io, edit: Edit, charge: Charge) -> None:
    rule, ident, _ = charge
    limit = rule.plan.limit
    before, present = await _ask(io, edit.old, rule, ident)
    used = min(edit.old.plan.limit - before.remaining, limit)
    more = used - (limit - present.remaining)
    if more <= 0:
        return
    age = round((monotonic() - edit.since) * 1_000_000)
    # Who meets the ident after calls under the new rule, as after an edit back and forth, has another part to add.
    name = f"edit.{edit.old.id}.{rule.id}.{limit}.{present.remaining}.{present.at // TOGETHER}"
    await io.execute(Correct(due=(Entry(Charge(rule, ident, more), 0, 0),), name=name, age=age))


async def _ask(io: Io, old: Rule, new: Rule, ident: str) -> Sequence[Answer]:
    command = Decide(Charges.of((Charge(old, ident, 0), Charge(new, ident, 0))), commit=False)
    try:
        answers = await io.execute(command)
    except RepeatCommand:
        answers = await io.execute(command)
    return tuple(answers)
