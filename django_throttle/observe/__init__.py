"""Reports decisions to hooks, the log and receivers of signals."""

from django_throttle.observe.reports import Hook, Report, areport, report, report_dropped, run_periodic_work

__all__ = ["Hook", "Report", "areport", "report", "report_dropped", "run_periodic_work"]
