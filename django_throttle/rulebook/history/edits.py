"""Tells what edits of rows change: saves and deletions by their signals, edits in bulk by the queryset; and reverts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import connections, models, router, transaction
from django.db.models.signals import post_save, pre_delete, pre_save

from django_throttle.rulebook.history.lines import State, because, changes, keep, made
from django_throttle.translated import gettext, translated

if TYPE_CHECKING:
    from django_throttle.models.change import ThrottleChange
    from django_throttle.models.rule import CheckedRow

M = TypeVar("M", bound=models.Model)


def connect() -> None:
    """Listen to saves and deletions of rules and overrides."""
    for model in ("django_throttle.ThrottleRule", "django_throttle.ThrottleOverride"):
        record_edits(model)


def record_edits(model: type[CheckedRow] | str) -> None:
    """Write a line of the history for each row of this model that is saved or deleted."""
    for signal, hear in ((pre_save, _before_save), (post_save, _after_save), (pre_delete, _before_deletion)):
        signal.connect(hear, sender=model, dispatch_uid="django_throttle.rulebook.history")


def _before_save(*, instance: CheckedRow, using: str, **_: object) -> None:
    rows = _rows(type(instance), using).filter(pk=instance.pk) if instance.pk is not None else ()
    instance.before_save = next(iter(rows), None)


def _after_save(*, instance: CheckedRow, using: str, **_: object) -> None:
    saved = type(instance)._base_manager.using(using).filter(pk=instance.pk).first()
    _tell([(instance.before_save, saved)], using)


def _before_deletion(*, instance: CheckedRow, using: str, **_: object) -> None:
    """Tell of a row that is still there: of two who remove one at once, the second removes nothing."""
    _tell([(row, None) for row in _rows(type(instance), using).filter(pk=instance.pk)], using)


@contextmanager
def updating(rows: models.QuerySet[Any]) -> Iterator[None]:
    """Tell what an update of these rows inside changes; all of it is one transaction."""
    using = rows.db
    with transaction.atomic(using=using):
        before = {row.pk: row for row in _rows(rows.model, using).filter(pk__in=rows.order_by().values("pk"))}
        yield
        after = rows.model._base_manager.using(using).in_bulk(list(before))
        _tell([(row, after.get(pk)) for pk, row in before.items()], using)


def tell_created(rows: Iterable[CheckedRow], using: str) -> None:
    """Tell of rows that were created in bulk."""
    _tell([(None, row) for row in rows], using)


def lock_rows(rows: models.QuerySet[M]) -> models.QuerySet[M]:
    """Return the rows of a query, locked until the transaction ends.

    SQLite locks no rows, and fails at once where a transaction that has read writes beside another one. So there the
    transaction begins with a write, of no row, which waits for the other's end.
    """
    rows = rows.select_for_update()
    if not connections[rows.db].features.has_select_for_update:
        key = rows.model._meta.pk.name
        rows.model._base_manager.using(rows.db).filter(**{key: 0}).update(**{key: 0})
    return rows


def _rows(model: type[CheckedRow], using: str) -> models.QuerySet[CheckedRow]:
    """Locked until the transaction ends, so that what they held is what the edit has replaced."""
    rows = model._base_manager.using(using).all()
    return lock_rows(rows) if transaction.get_connection(using).in_atomic_block else rows


def _tell(edits: Iterable[tuple[CheckedRow | None, CheckedRow | None]], using: str) -> None:
    lines = [_line(before, after) for before, after in edits]
    if found := [line for line in lines if line is not None]:
        keep(found, using)


def _line(before: CheckedRow | None, after: CheckedRow | None) -> ThrottleChange | None:
    """The line of one edit: a row as it was and as it is, of which one may be None; None where they are equal."""
    row = after or before
    if row is None:
        return None
    old: State | None = None if before is None else before.state()
    new: State | None = None if after is None else after.state()
    if old == new:
        return None
    action = "added" if old is None else "removed" if new is None else "changed"
    words = "" if action == "changed" else row.meaning
    return made(row.history_kind, row.history_name, action, words, row=row.pk, before=old, after=new)


KINDS: Final = {"rule": "ThrottleRule", "override": "ThrottleOverride"}
CHANGED: Final = "changed"  # the code of the error that ``confirmed`` overrules


def is_revertible(change: ThrottleChange) -> bool:
    """True for edits of rows; settings are a file, and an override that has run out is as it was."""
    return change.kind in KINDS and change.row is not None and change.before != change.after


def revert(change: ThrottleChange, *, confirmed: bool = False) -> str:
    """Put the row back to what it was before this line of the history; returns what that changed, in words.

    Raises ValidationError: where the row has changed since, unless ``confirmed``; where it is so already; and where
    the row as it was is no longer valid.
    """
    if not is_revertible(change):
        raise ValidationError(gettext("This line is no edit of a row, so there is nothing to revert."))
    model = apps.get_model("django_throttle", KINDS[change.kind])
    using = router.db_for_write(model)
    with transaction.atomic(using=using), because(f"revert of change {change.pk}", action="reverted"):
        row = _present(model, change, using)
        now = None if row is None else row.state()
        if now == change.before:
            raise ValidationError(gettext("It is as it was before this edit: there is nothing to revert."))
        if now != change.after and not confirmed:
            raise ValidationError(_since(model, change.after, now), code=CHANGED)
        if change.before is not None:
            restored = row or model(pk=change.row)
            restored.restore(change.before)
            restored.clean_row()
            restored.save(using=using)
        elif row is not None:
            row.delete()
    what = f"{change.get_kind_display()} {change.name}"
    if change.before is None:
        return gettext("{what} is removed", what=what)
    if now is None:
        return gettext("{what} is there again", what=what)
    return _differences(model, now, change.before)


def _present(model: Any, change: ThrottleChange, using: str) -> CheckedRow | None:
    """The row of this line, locked; a rule that was removed and made again is found by its name."""
    rows = lock_rows(model._base_manager.using(using).all())
    row: CheckedRow | None = rows.filter(pk=change.row).first()
    if row is None and change.kind == "rule":
        row = rows.filter(name=change.name).first()
    return row


def _differences(model: type[CheckedRow], before: State | None, after: State | None) -> str:
    return "; ".join(map(translated, changes(before, after, model.labels())))


def _since(model: type[CheckedRow], after: State | None, now: State | None) -> str:
    if now is None:
        return gettext("It has been removed since.")
    if after is None:
        return gettext("There is one again since.")
    return gettext("It has been edited since: {changes}.", changes=_differences(model, after, now))
