"""Migration of counts when an edit makes a rule count under another id: once for each ident, at its next call."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple, TypeVar

from django_throttle.core.commands import Answer, Charge, Charges, Correct, Decide, LedgerEntry
from django_throttle.core.edits import period, takeovers
from django_throttle.core.io import Io
from django_throttle.core.rule import Rule
from django_throttle.exceptions import RepeatCommand, StoreError
from django_throttle.runtime import in_child
from django_throttle.stores.redis.timeouts import one_deadline

T = TypeVar("T")

EDIT_SECONDS: Final = 86_400.0  # for which an edit is remembered, at most
MAX_MIGRATED_IDENTS: Final = 50_000  # remembered for each edit
#: Processes that migrate the same ident within this time send the same name, so that it counts once.
DEDUP_MICROSECONDS: Final = 4_000_000


@dataclass(slots=True, eq=False)
class Edit:
    """Edit of a rule. Times are seconds on the monotonic clock."""

    old: Rule  #: the rule before the edit
    since: float
    until: float  #: from then on the counts under the old rule have run out
    migrated: set[str] = field(default_factory=set)  #: idents


class PendingMigration(NamedTuple):
    """Charge of a call, and the edit whose counts are migrated for its ident before."""

    edit: Edit
    charge: Charge


Edits = Mapping[str, tuple[Edit, ...]]  # by the short id under which it is counted now
edits: Edits = {}
_lock = Lock()  # held while edits are replaced
in_child(sys.modules[__name__], lambda module: vars(module).update(_lock=Lock()))


def note(old: Callable[[str], Rule | None], rules: Iterable[Rule]) -> None:
    """Remember edits whose counts have to be migrated. ``old`` returns the former rule of a name."""
    now = monotonic()
    pairs = [(before, rule) for rule in rules if (before := old(rule.name)) is not None and before is not rule]
    changed = [(now, before, rule) for before, rule in pairs if before != rule]
    with _lock:
        _replace(_add_edits(edits, changed), now)


def recall(past: Iterable[tuple[float, Rule, Rule]]) -> None:
    """Remember edits made before this process started, the oldest first: seconds ago, rule before, rule after."""
    now = monotonic()
    recalled = _add_edits({}, [(now - max(0.0, age), before, rule) for age, before, rule in past])
    with _lock:
        _replace({**recalled, **edits}, now)  # edits that this process saw itself take precedence


def _add_edits(former: Edits, changed: Iterable[tuple[float, Rule, Rule]]) -> Edits:
    """Return the former edits with the changed rules: since when, the rule before, and after."""
    result = dict(former)
    for since, before, rule in changed:
        for was, part in takeovers(before, rule):
            # An ident without a call since an earlier edit still has its counts under the rule before that edit.
            earlier = [Edit(e.old, e.since, e.until) for e in result.pop(was.id, ()) if e.old.id != part.id]
            result[part.id] = (*earlier, Edit(was, since, since + min(EDIT_SECONDS, period(was, part))))
    return result


def _replace(new: Edits, now: float) -> None:
    """Replace the mapping, without edits that have run out. Readers take no lock, so it is never changed in place."""
    global edits
    current = {key: tuple([edit for edit in of_rule if edit.until > now]) for key, of_rule in new.items()}
    edits = {key: of_rule for key, of_rule in current.items() if of_rule}


def forget() -> None:
    """Forget all edits, as the settings have changed."""
    global edits
    edits = {}


def pending_migrations(charges: Iterable[Charge]) -> list[PendingMigration]:
    """Return the migrations to make before these charges."""
    now = monotonic()
    pairs = ((edit, charge) for charge in charges if charge.cost for edit in edits.get(charge.rule.id, ()))
    return [
        PendingMigration(edit, charge)
        for edit, charge in pairs
        if now < edit.until and charge.ident not in edit.migrated
    ]


async def migrate_first(io: Io, migrations: Iterable[PendingMigration], decide: Callable[[], Awaitable[T]]) -> T:
    """Migrate counts, then decide, within one deadline. If the store fails, failure policies apply to the decision."""
    with one_deadline():
        await _migrate_all(io, migrations)
        return await decide()


async def _migrate_all(io: Io, migrations: Iterable[PendingMigration]) -> None:
    try:
        for edit, charge in migrations:
            await _migrate(io, edit, charge)
            if len(edit.migrated) >= MAX_MIGRATED_IDENTS:
                edit.migrated.clear()
            edit.migrated.add(charge.ident)
    except StoreError:
        return


async def _migrate(io: Io, edit: Edit, charge: Charge) -> None:
    """Charge the new rule with what the ident used under the old one, less what it used under the new one."""
    rule, ident, _ = charge
    limit = rule.params.limit
    before, after = await _peek_both(io, edit.old, rule, ident)
    used = min(edit.old.params.limit - before.remaining, limit)
    missing = used - (limit - after.remaining)
    if missing <= 0:
        return
    age = round((monotonic() - edit.since) * 1_000_000)
    # A process that finds other counts under the new rule, as after an edit back and forth, has another part to add.
    name = f"edit.{edit.old.id}.{rule.id}.{limit}.{after.remaining}.{after.at // DEDUP_MICROSECONDS}"
    await io.execute(Correct(charges=(LedgerEntry(Charge(rule, ident, missing), 0, 0),), name=name, age=age))


async def _peek_both(io: Io, old: Rule, new: Rule, ident: str) -> Sequence[Answer]:
    command = Decide(Charges.of((Charge(old, ident, 0), Charge(new, ident, 0))), commit=False)
    try:
        answers = await io.execute(command)
    except RepeatCommand:
        answers = await io.execute(command)
    return tuple(answers)
