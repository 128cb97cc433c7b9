"""The history of rules and overrides: who changed what, when and why."""

from django_throttle.history.lines import Editor, aged, because, changes, editing, record

__all__ = ["Editor", "aged", "because", "changes", "editing", "record"]
