"""Reports decisions to hooks, the log and receivers of signals."""

from django_throttle.observe.reports import Hook, Report, atell, run_periodic_work, tell, tell_dropped

__all__ = ["Hook", "Report", "atell", "run_periodic_work", "tell", "tell_dropped"]
