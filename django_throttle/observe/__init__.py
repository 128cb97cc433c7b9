"""Reports decisions to hooks, the log and receivers of signals."""

from django_throttle.observe.recorders import Recorder, add_recorder
from django_throttle.observe.reports import Hook, Report, areport, report, report_dropped, run_periodic_work

__all__ = ["Hook", "Recorder", "Report", "add_recorder", "areport", "report", "report_dropped", "run_periodic_work"]
