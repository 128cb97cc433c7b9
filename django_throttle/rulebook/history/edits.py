"""Recording of edits of rows, by signals of saves and deletions and by the queryset, and reverts of edits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.apps import apps
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connections, models, router, transaction
from django.db.models.signals import post_save, pre_delete, pre_save

from django_throttle.rulebook.history.lines import State, because, changes, new_line, save_lines
from django_throttle.translated import gettext, translated

if TYPE_CHECKING:
    from django_throttle.models.change import ThrottleChange
    from django_throttle.models.rule import CheckedRow

M = TypeVar("M", bound=models.Model)


def record_edits(model: type[CheckedRow] | str) -> None:
    """Write a line of the history for each row of this model that is saved or deleted."""
    receivers = ((pre_save, _before_save), (post_save, _after_save), (pre_delete, _before_deletion))
    for signal, receiver in receivers:
        signal.connect(receiver, sender=model, dispatch_uid="django_throttle.rulebook.history")


def _before_save(*, instance: CheckedRow, using: str, **_: object) -> None:
    rows = _rows(type(instance), using).filter(pk=instance.pk) if instance.pk is not None else ()
    instance.before_save = next(iter(rows), None)


def _after_save(*, instance: CheckedRow, using: str, **_: object) -> None:
    saved = type(instance)._base_manager.using(using).filter(pk=instance.pk).first()
    _record([(instance.before_save, saved)], using)


def _before_deletion(*, instance: CheckedRow, using: str, **_: object) -> None:
    """Record the deletion, unless another process has deleted the row at the same time."""
    _record([(row, None) for row in _rows(type(instance), using).filter(pk=instance.pk)], using)


@contextmanager
def recording_update(rows: models.QuerySet[Any]) -> Iterator[None]:
    """Record an update of these rows that is made inside, in one transaction."""
    using = rows.db
    with transaction.atomic(using=using):
        before = {row.pk: row for row in _rows(rows.model, using).filter(pk__in=rows.order_by().values("pk"))}
        yield
        after = rows.model._base_manager.using(using).in_bulk(list(before))
        _record([(row, after.get(pk)) for pk, row in before.items()], using)


def record_created(rows: Iterable[CheckedRow], using: str) -> None:
    _record([(None, row) for row in rows], using)


def lock_rows(rows: models.QuerySet[M]) -> models.QuerySet[M]:
    """Return the rows of a query, locked until the transaction ends.

    SQLite locks no rows. If a transaction writes after it has read, it fails at once if another one has written. So on
    SQLite this begins with a write without rows, which waits for the other transaction.
    """
    rows = rows.select_for_update()
    if not connections[rows.db].features.has_select_for_update:
        key = rows.model._meta.pk.name
        rows.model._base_manager.using(rows.db).filter(**{key: 0}).update(**{key: 0})
    return rows


def _rows(model: type[CheckedRow], using: str) -> models.QuerySet[CheckedRow]:
    """Return the rows, locked if a transaction is open, so that no other edit comes before this one."""
    rows = model._base_manager.using(using).all()
    return lock_rows(rows) if transaction.get_connection(using).in_atomic_block else rows


def _record(edits: Iterable[tuple[CheckedRow | None, CheckedRow | None]], using: str) -> None:
    lines = [_line(before, after) for before, after in edits]
    if changed := [line for line in lines if line is not None]:
        save_lines(changed, using)


def _line(before: CheckedRow | None, after: CheckedRow | None) -> ThrottleChange | None:
    """Return the line of one edit: a row before and after, one of which may be None. Return None if they are equal."""
    row = after or before
    if row is None:
        return None
    old: State | None = None if before is None else before.state()
    new: State | None = None if after is None else after.state()
    if old == new:
        return None
    action = "added" if old is None else "removed" if new is None else "changed"
    words = "" if action == "changed" else row.meaning
    return new_line(row.history_kind, row.history_name, action, words, row=row.pk, before=old, after=new)


MODELS: Final = {"rule": "ThrottleRule", "override": "ThrottleOverride"}  # by kind of line
#: Code of the ValidationError of ``revert`` that ``confirmed`` prevents.
CHANGED: Final = "changed"


def is_revertible(change: ThrottleChange) -> bool:
    """Return True for edits of rows. Settings are in a file, and the end of an override changes no row."""
    return change.kind in MODELS and change.row is not None and change.before != change.after


def revert(change: ThrottleChange, *, confirmed: bool = False, may_add: bool = True) -> str:
    """Restore the row from before this line of the history. Return the differences, in words.

    Raise ValidationError if the row has changed since and the revert is not ``confirmed``, if the row equals its former
    state, or if the former state is not valid now. Raise PermissionDenied if a row is to be added, unless ``may_add``.
    """
    if not is_revertible(change):
        raise ValidationError(gettext("This line is no edit of a row, so there is nothing to revert."))
    model = apps.get_model("django_throttle", MODELS[change.kind])
    using = router.db_for_write(model)
    with transaction.atomic(using=using), because(f"revert of change {change.pk}", action="reverted"):
        row = _current_row(model, change, using)
        now = None if row is None else row.state()
        if now == change.before:
            raise ValidationError(gettext("It is as it was before this edit: there is nothing to revert."))
        if now != change.after and not confirmed:
            raise ValidationError(_changed_since(model, change.after, now), code=CHANGED)
        if change.before is not None:
            if row is None and not may_add:
                raise PermissionDenied
            restored = row or model(pk=change.row)
            restored.restore(change.before)
            restored.clean_row()
            restored.save(using=using)
        elif row is not None:
            row.delete()
    title = f"{change.get_kind_display()} {change.name}"
    if change.before is None:
        return gettext("{what} is removed", what=title)
    if now is None:
        return gettext("{what} is there again", what=title)
    return _differences(model, now, change.before)


def _current_row(model: Any, change: ThrottleChange, using: str) -> CheckedRow | None:
    """Return the row of this line, locked. A rule that was deleted and added again is found by its name."""
    rows = lock_rows(model._base_manager.using(using).all())
    row: CheckedRow | None = rows.filter(pk=change.row).first()
    if row is None and change.kind == "rule":
        row = rows.filter(name=change.name).first()
    return row


def _differences(model: type[CheckedRow], before: State | None, after: State | None) -> str:
    return "; ".join(map(translated, changes(before, after, model.labels())))


def _changed_since(model: type[CheckedRow], after: State | None, now: State | None) -> str:
    if now is None:
        return gettext("It has been removed since.")
    if after is None:
        return gettext("There is one again since.")
    return gettext("It has been edited since: {changes}.", changes=_differences(model, after, now))
