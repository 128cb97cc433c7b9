"""Reports decisions to hooks, the log and receivers of signals, and what requests cost."""

from django_throttle.observe.reports import Hook, Report, atell, run_periodic_work, tell, tell_dropped
from django_throttle.observe.route_costs import CostFlusher

__all__ = ["CostFlusher", "Hook", "Report", "atell", "run_periodic_work", "tell", "tell_dropped"]
