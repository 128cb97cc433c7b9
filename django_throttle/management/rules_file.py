"""Rules as a JSON file, and the differences between a file and the database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from django.core.exceptions import ValidationError

from django_throttle.core import Rule
from django_throttle.core.texts import translatable
from django_throttle.exceptions import InvalidRate, InvalidRule
from django_throttle.models import ThrottleRule
from django_throttle.rulebook.history import changes
from django_throttle.rulebook.sources import check_allowed, fault_of
from django_throttle.translated import gettext, translated


@dataclass(frozen=True, slots=True)
class Diff:
    """Rows to add, pairs of the present row and the wanted one, rows to remove, and how many stay as they are."""

    added: tuple[ThrottleRule, ...]
    changed: tuple[tuple[ThrottleRule, ThrottleRule], ...]
    removed: tuple[ThrottleRule, ...]
    same: int

    def lines(self) -> Iterator[str]:
        """One line for each rule that changes, under it one for each option: old → new."""
        for row in self.added:
            yield f"+ {row.name}    {translated(row.meaning)}"
        for old, new in self.changed:
            yield f"~ {new.name}    {translated(new.meaning)}"
            yield from (f"    {translated(change)}" for change in changes(old.state(), new.state()))
        for row in self.removed:
            yield f"- {row.name}    {translated(row.meaning)}"

    def summary(self) -> str:
        """The counts, in one line."""
        told = {name: len(getattr(self, name)) for name in ("added", "changed", "removed")}
        return gettext("{added} added, {changed} changed, {removed} removed, {same} unchanged", same=self.same, **told)

    def apply(self) -> None:
        """Write the changes; the caller opens the transaction."""
        for row in self.added:
            row.save(force_insert=True)
        for old, new in self.changed:
            new.pk = old.pk
            new.save(force_update=True)
        for row in self.removed:
            row.delete()


def compare(present: Mapping[str, ThrottleRule], wanted: Iterable[ThrottleRule], *, replace: bool) -> Diff:
    """The changes from the present rows to the wanted ones; with ``replace``, other rows are removed."""
    wanted = sorted(wanted, key=lambda row: row.name)
    both = [(present[row.name], row) for row in wanted if row.name in present]
    changed = tuple((old, new) for old, new in both if old.state() != new.state())
    names = {row.name for row in wanted}
    return Diff(
        added=tuple(row for row in wanted if row.name not in present),
        changed=changed,
        removed=tuple(row for name, row in sorted(present.items()) if replace and name not in names),
        same=len(both) - len(changed),
    )


MAX_BYTES: Final = 1_000_000


class InvalidFile(InvalidRule):
    """A file of rules cannot be used; ``faults`` are the reasons, one sentence each."""

    def __init__(self, *faults: str) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def dump(rows: Iterable[ThrottleRule], others: Iterable[Rule] = ()) -> str:
    """The text of a file that ``load`` reads back."""
    found = {rule.name: rule.as_options() for rule in others}
    found.update({row.name: _options(row) for row in rows})
    return json.dumps(dict(sorted(found.items())), indent=2, ensure_ascii=False) + "\n"


def load(raw: bytes) -> list[ThrottleRule]:
    """The rules in a file, as rows that are not saved; raises InvalidFile with everything that is wrong with it."""
    rows, faults = [], []
    for name, options in _parse(raw).items():
        try:
            rows.append(_row(name, options))
        except (InvalidRule, InvalidRate) as error:
            faults.append(translatable("rule {rule!r}: {fault}", rule=name, fault=fault_of(error)))
    if faults:
        raise InvalidFile(*faults)
    return rows


def _options(row: ThrottleRule) -> dict[str, object]:
    """The row's options that differ from the defaults; all of them, of an invalid row."""
    try:
        rule = row.as_rule()
        options = rule.as_options()
        if rule.holds_slots:  # in settings, a check asks if only sockets are meant
            options["events"] = list(rule.events)
    except (InvalidRule, InvalidRate):
        options = {name: value for name, value in row.state().items() if name not in ("name", "description")}
    return {**options, "description": row.description} if row.description else options


def _parse(raw: bytes) -> Mapping[str, object]:
    if len(raw) > MAX_BYTES:
        raise InvalidFile(translatable("the file is larger than {most:,} bytes; rules are small", most=MAX_BYTES))
    try:
        found = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_once, parse_constant=_no_constant)
    except InvalidFile:
        raise
    except UnicodeDecodeError as error:
        raise InvalidFile(translatable("the file is not UTF-8 text")) from error
    except RecursionError as error:
        raise InvalidFile(translatable("the file is nested too deeply")) from error
    except ValueError as error:  # JSONDecodeError, and numbers of more digits than Python reads
        raise InvalidFile(translatable("the file is not JSON: {error}", error=error)) from error
    if not isinstance(found, dict):
        fault = translatable("the file holds an object of rules: {example}", example='{"api": {"rate": "100/min"}}')
        raise InvalidFile(fault)
    return found


def _row(name: str, options: object) -> ThrottleRule:
    if not isinstance(options, dict):
        kind = type(options).__name__
        raise InvalidRule(translatable("its options are an object, not {kind}", kind=kind), rule=name)
    description = options.pop("description", "")
    if not isinstance(description, str):
        raise InvalidRule(translatable("description must be text"), rule=name)
    row = ThrottleRule.of(check_allowed(Rule.from_options(name, options)))
    row.description = description
    try:
        row.full_clean(validate_unique=False)
    except ValidationError as error:
        faults = [f"{field}: {' '.join(texts)}" for field, texts in error.message_dict.items()]
        raise InvalidRule("; ".join(faults), rule=name) from error
    return row


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidFile(translatable("{name!r} is there twice", name=twice))
    return found


def _no_constant(text: str) -> NoReturn:
    raise InvalidFile(translatable("{text} is not a number that a rule can have", text=text))
