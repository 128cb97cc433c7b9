"""Files of rules in JSON, and their differences from the database."""

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
    """Differences between the rows of the database and the rules of a file."""

    added: tuple[ThrottleRule, ...]
    changed: tuple[tuple[ThrottleRule, ThrottleRule], ...]  #: pairs of the row in the database and the new row
    removed: tuple[ThrottleRule, ...]
    same: int  #: number of equal rows

    def lines(self) -> Iterator[str]:
        """Yield a line for each rule that changes, followed by a line for each option: old → new."""
        for row in self.added:
            yield f"+ {row.name}    {translated(row.meaning)}"
        for old, new in self.changed:
            yield f"~ {new.name}    {translated(new.meaning)}"
            yield from (f"    {translated(change)}" for change in changes(old.state(), new.state()))
        for row in self.removed:
            yield f"- {row.name}    {translated(row.meaning)}"

    def summary(self) -> str:
        """Return the numbers of rows in one line."""
        counts = {name: len(getattr(self, name)) for name in ("added", "changed", "removed")}
        return gettext(
            "{added} added, {changed} changed, {removed} removed, {same} unchanged", same=self.same, **counts
        )

    def apply(self) -> None:
        """Write the changes. The caller opens the transaction."""
        for row in self.added:
            row.save(force_insert=True)
        for old, new in self.changed:
            new.pk = old.pk
            new.save(force_update=True)
        for row in self.removed:
            row.delete()


def compare(existing: Mapping[str, ThrottleRule], rows: Iterable[ThrottleRule], *, replace: bool) -> Diff:
    """Return the differences of rows from existing rows by name. With ``replace``, other existing rows are removed."""
    rows = sorted(rows, key=lambda row: row.name)
    both = [(existing[row.name], row) for row in rows if row.name in existing]
    changed = tuple((old, new) for old, new in both if old.state() != new.state())
    names = {row.name for row in rows}
    return Diff(
        added=tuple(row for row in rows if row.name not in existing),
        changed=changed,
        removed=tuple(row for name, row in sorted(existing.items()) if replace and name not in names),
        same=len(both) - len(changed),
    )


MAX_BYTES: Final = 1_000_000


class InvalidFile(InvalidRule):
    """A file of rules is not valid. ``faults`` has a sentence for each reason."""

    def __init__(self, *faults: str) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def dump(rows: Iterable[ThrottleRule], others: Iterable[Rule] = ()) -> str:
    """Return the text of a file for ``load``. Rows replace other rules of the same name."""
    options = {rule.name: rule.as_options() for rule in others}
    options.update({row.name: _options(row) for row in rows})
    return json.dumps(dict(sorted(options.items())), indent=2, ensure_ascii=False) + "\n"


def load(raw: bytes) -> list[ThrottleRule]:
    """Return the rules in a file as unsaved rows. Raise InvalidFile with all faults of the file."""
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
    """Return the row's options that differ from their defaults. Return all columns of an invalid row."""
    try:
        rule = row.as_rule()
        options = rule.as_options()
        if rule.holds_slots:  # a check of settings asks if the default event is intended
            options["events"] = list(rule.events)
    except (InvalidRule, InvalidRate):
        options = {name: value for name, value in row.state().items() if name not in ("name", "description")}
    return {**options, "description": row.description} if row.description else options


def _parse(raw: bytes) -> Mapping[str, object]:
    if len(raw) > MAX_BYTES:
        raise InvalidFile(translatable("the file is larger than {most:,} bytes; rules are small", most=MAX_BYTES))
    try:
        rules = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_unique_names, parse_constant=_refuse_constant)
    except InvalidFile:
        raise
    except UnicodeDecodeError as error:
        raise InvalidFile(translatable("the file is not UTF-8 text")) from error
    except RecursionError as error:
        raise InvalidFile(translatable("the file is nested too deeply")) from error
    except ValueError as error:  # JSONDecodeError, and numbers with more digits than Python accepts
        raise InvalidFile(translatable("the file is not JSON: {error}", error=error)) from error
    if not isinstance(rules, dict):
        fault = translatable("the file holds an object of rules: {example}", example='{"api": {"rate": "100/min"}}')
        raise InvalidFile(fault)
    return rules


def _row(name: str, options: object) -> ThrottleRule:
    if not isinstance(options, dict):
        kind = type(options).__name__
        raise InvalidRule(translatable("its options are an object, not {kind}", kind=kind), rule=name)
    description = options.pop("description", "")
    if not isinstance(description, str):
        raise InvalidRule(translatable("description must be text"), rule=name)
    row = ThrottleRule.from_rule(check_allowed(Rule.from_options(name, options)))
    row.description = description
    try:
        row.full_clean(validate_unique=False)
    except ValidationError as error:
        faults = [f"{field}: {' '.join(texts)}" for field, texts in error.message_dict.items()]
        raise InvalidRule("; ".join(faults), rule=name) from error
    return row


def _unique_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise InvalidFile(translatable("{name!r} is there twice", name=duplicate))
    return members


def _refuse_constant(text: str) -> NoReturn:
    raise InvalidFile(translatable("{text} is not a number that a rule can have", text=text))
