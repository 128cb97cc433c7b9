"""Reports decisions to hooks, the log and receivers of signals."""

from django_throttle.observe.hooks import Hook, Report, atell, tell
from django_throttle.observe.logs import keep_up

__all__ = ["Hook", "Report", "atell", "keep_up", "tell"]
