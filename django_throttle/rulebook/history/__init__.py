"""History of edits of rules and overrides: what changed, when, why, and by whom."""

from django_throttle.rulebook.history.edits import CHANGED, is_revertible, revert
from django_throttle.rulebook.history.lines import Editor, because, changes, delete_old, editing, record

__all__ = ["CHANGED", "Editor", "because", "changes", "delete_old", "editing", "is_revertible", "record", "revert"]
