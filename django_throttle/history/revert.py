"""Takes one edit back, which is an edit itself."""

from __future__ import annotations

from typing import Any, Final

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import router, transaction

from django_throttle.history.edits import UNTOLD, state
from django_throttle.history.lines import because, changes

KINDS: Final = {"rule": "ThrottleRule", "override": "ThrottleOverride"}
CHANGED: Final = "changed"  # the code of the error that ``confirmed`` overrules


def is_revertible(change: Any) -> bool:
    """True for edits of rows; settings are a file, and an override that has run out is as it was."""
    return change.kind in KINDS and change.row is not None and change.before != change.after


def revert(change: Any, *, confirmed: bool = False) -> str:
    """Put the row back to what it was before this line of the history; returns what that changed, in words.

    Raises ValidationError: where the row has changed since, unless ``confirmed``; where it is so already; and where
    the row as it was makes no sense any longer.
    """
    if not is_revertible(change):
        raise ValidationError("This line is no edit of a row, so there is nothing to revert.")
    model = apps.get_model("django_throttle", KINDS[change.kind])
    using = router.db_for_write(model)
    with transaction.atomic(using=using), because(f"revert of change {change.pk}", action="reverted"):
        row = _present(model, change, using)
        now = None if row is None else state(row)
        if now == change.before:
            raise ValidationError("It is as it was before this edit: there is nothing to revert.")
        if now != change.after and not confirmed:
            raise ValidationError(_since(change.after, now), code=CHANGED)
        if change.before is None:
            row.delete()
        else:
            _restore(row or model(pk=change.row), change.before, using)
    return "; ".join(changes(now, change.before))


def _present(model: Any, change: Any, using: str) -> Any:
    """The row of this line, locked; a rule that was removed and made again is found by its name."""
    rows = model._base_manager.using(using).select_for_update()
    found = rows.filter(pk=change.row).first()
    if found is None and change.kind == "rule":
        found = rows.filter(name=(change.after or change.before)["name"]).first()
    return found


def _restore(row: Any, before: dict[str, Any], using: str) -> None:
    for field in row._meta.concrete_fields:
        if not field.primary_key and field.name not in UNTOLD:
            value = before[field.name] if field.name in before else field.get_default()
            setattr(row, field.attname, field.to_python(value))
    row.clean_row()
    row.save(using=using)


def _since(after: Any, now: Any) -> str:
    if now is None:
        return "It has been removed since."
    if after is None:
        return "There is one again since."
    return f"It has been edited since: {'; '.join(changes(after, now))}."
