"""The history of rules and overrides: who changed what, when and why."""

from django_throttle.rulebook.history.edits import CHANGED, is_revertible, revert
from django_throttle.rulebook.history.lines import Editor, aged, because, changes, editing, record

__all__ = ["CHANGED", "Editor", "aged", "because", "changes", "editing", "is_revertible", "record", "revert"]
