"""Carries what was used over an edit that has a rule count elsewhere: once for each ident, at its next call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar

from django_throttle.core.commands import Answer, Charge, Decide, PastCharge, Settle
from django_throttle.core.decide import Flow
from django_throttle.core.edits import period, takeovers
from django_throttle.core.rule import Rule
from django_throttle.exceptions import RepeatCommand, StoreError
from django_throttle.stores.timeouts import one_deadline

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


class Due(NamedTuple):
    """A call's charge, to which what its ident used under the former rule is to be added first."""

    edit: Edit
    charge: Charge


edits: dict[str, tuple[Edit, ...]] = {}  # by the short id under which it is counted now; empty but after edits


def note(old: Callable[[str], Rule | None], rules: Iterable[Rule]) -> None:
    """Rules were edited: remember the ``old`` ones, by their names, whose counts are to be converted."""
    global edits
    now = monotonic()
    known = dict(edits)
    for rule in rules:
        before = old(rule.name)
        if not (before is None or before is rule or before == rule):
            _add(known, before, rule, now)
    edits = _lasting(known, now)


def recall(past: Iterable[tuple[float, Rule, Rule]]) -> None:
    """The same for edits before this process began, the oldest first: how many seconds ago, the rule before, after."""
    global edits
    now, known = monotonic(), dict[str, tuple[Edit, ...]]()
    for age, before, rule in past:
        _add(known, before, rule, now - max(0.0, age))
    edits = _lasting({**known, **edits}, now)  # what it has seen itself it knows better


def _add(known: dict[str, tuple[Edit, ...]], before: Rule, rule: Rule, since: float) -> None:
    for was, part in takeovers(before, rule):
        # Whose ident has not called since an earlier edit has its counts where they were before that.
        earlier = [Edit(e.old, e.since, e.until) for e in known.pop(was.id, ()) if e.old.id != part.id]
        known[part.id] = (*earlier, Edit(was, since, since + min(LONGEST, period(was, part))))


def _lasting(known: Mapping[str, tuple[Edit, ...]], now: float) -> dict[str, tuple[Edit, ...]]:
    return {key: found for key, of_rule in known.items() if (found := tuple([e for e in of_rule if e.until > now]))}


def forget() -> None:
    """Other settings: what was edited before is of no concern."""
    global edits
    edits = {}


def due(charges: Iterable[Charge]) -> list[Due]:
    """What is to be carried over before these are charged."""
    return list(_due(charges, monotonic()))


def _due(charges: Iterable[Charge], now: float) -> Iterator[Due]:
    for charge in charges:
        for edit in edits.get(charge.rule.id, ()):
            if charge.cost and now < edit.until and charge.ident not in edit.done:
                yield Due(edit, charge)


def carry_first(found: Iterable[Due], decide: Callable[[], Flow[T]]) -> Flow[T]:
    """Carry over, then decide, within one deadline; where the store fails, the decision says what becomes of it."""
    with one_deadline():
        yield from _carry_all(found)
        return (yield from decide())


def _carry_all(found: Iterable[Due]) -> Flow[None]:
    """Charge what an ident has used under the former rule, less what it has under the new one already."""
    try:
        for edit, charge in found:
            yield from _carry(edit, charge)
            if len(edit.done) >= MOST:
                edit.done.clear()
            edit.done.add(charge.ident)
    except StoreError:
        return


def _carry(edit: Edit, charge: Charge) -> Flow[None]:
    rule, ident, _ = charge
    limit = rule.plan.limit
    before, present = yield from _ask(edit.old, rule, ident)
    used = min(edit.old.plan.limit - before.remaining, limit)
    more = used - (limit - present.remaining)
    if more <= 0:
        return
    age = round((monotonic() - edit.since) * 1_000_000)
    # Who meets the ident after calls under the new rule, as after an edit back and forth, has another part to add.
    name = f"edit.{edit.old.id}.{rule.id}.{limit}.{present.remaining}.{present.at // TOGETHER}"
    yield Settle((), (PastCharge(Charge(rule, ident, more), 0, 0),), name, age=age)


def _ask(old: Rule, new: Rule, ident: str) -> Flow[Sequence[Answer]]:
    command = Decide((Charge(old, ident, 0), Charge(new, ident, 0)), commit=False)
    try:
        answers: Any = yield command
    except RepeatCommand:
        answers = yield command
    return tuple(answers)
