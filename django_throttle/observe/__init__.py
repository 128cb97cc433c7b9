"""Reports decisions to hooks, the log and receivers of signals."""

from django_throttle.observe.reports import Hook, Report, atell, keep_up, tell

__all__ = ["Hook", "Report", "atell", "keep_up", "tell"]
