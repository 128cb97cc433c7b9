"""Recorders, which receive every decision of entry points and the usage of each request.

``django_throttle.console`` adds a recorder. ``current`` is None without recorders.
"""

from __future__ import annotations

from django_throttle.core import Decision
from django_throttle.core.commands import Charges
from django_throttle.costs.meter import Meter
from django_throttle.identity.call import Call


class Recorder:
    """Receives every decision of this process, in the thread or on the event loop that made it.

    A recorder is faster than a hook of ``HOOKS``, because it needs no ``Report``. Override the methods that you
    need, and let them append to a list that another thread counts::

        class Rules(Recorder):
            def __init__(self):
                self.allowed = deque(maxlen=10_000)

            def record_allowed(self, charges, scope, method, events, began):
                self.allowed.append([rule.name for rule in charges.rules.rules])

        add_recorder(Rules())  # in the method ready() of an app

    An exception of a recorder is raised in the call.
    """

    def record_allowed(self, charges: Charges, scope: str, method: str, events: tuple[str, ...], began: float) -> None:
        """Record a call that passed at once without anything to report.

        ``charges`` has its rules, idents and costs. ``began`` is the time on the clock of ``time.perf_counter`` when
        the decision began.
        """

    def record(self, call: Call, decision: Decision, seconds: float) -> None:
        """Record any other call: refused, shadowed, delayed, or decided without the store.

        ``seconds`` is the time that the decision took.
        """

    def record_request(self, scope: str, meter: Meter) -> None:
        """Record the usage of a request when its response is closed."""


class Recorders(Recorder):
    """Several recorders as one."""

    def __init__(self, *recorders: Recorder) -> None:
        self.recorders = recorders

    def record_allowed(self, charges: Charges, scope: str, method: str, events: tuple[str, ...], began: float) -> None:
        for recorder in self.recorders:
            recorder.record_allowed(charges, scope, method, events, began)

    def record(self, call: Call, decision: Decision, seconds: float) -> None:
        for recorder in self.recorders:
            recorder.record(call, decision, seconds)

    def record_request(self, scope: str, meter: Meter) -> None:
        for recorder in self.recorders:
            recorder.record_request(scope, meter)


#: The recorder of this process; None if there is none. Read it as ``recorders.current``, as it may be replaced.
current: Recorder | None = None


def add_recorder(recorder: Recorder) -> None:
    """Call this recorder too, from now on. Adding it again, as ``ready`` may run twice in tests, changes nothing."""
    global current
    added = current.recorders if isinstance(current, Recorders) else () if current is None else (current,)
    if recorder not in added:
        current = Recorders(*added, recorder) if added else recorder
