"""Recorders: what is called with every decision of entry points, and with what each request has used.

``django_throttle.console`` adds one. Without a recorder ``current`` is None, and a call of a view asks nothing more.
"""

from __future__ import annotations

from django_throttle.core import Decision
from django_throttle.core.commands import Charges
from django_throttle.costs.meter import Meter
from django_throttle.identity.call import Call


class Recorder:
    """Receives every decision of this process, in the thread that made it, on an event loop too.

    A hook of the setting ``HOOKS`` gets a ``Report``, for which a request leaves its shortest path. A recorder does
    without: override the methods that you need, and have them append to a list that another thread counts::

        class Rules(Recorder):
            def __init__(self):
                self.allowed = deque(maxlen=10_000)

            def record_allowed(self, charges, scope, method, events, began):
                self.allowed.append([rule.name for rule in charges.rules.rules])

        add_recorder(Rules())  # in the method ready() of an app

    An exception of a recorder is an exception of the call.
    """

    def record_allowed(self, charges: Charges, scope: str, method: str, events: tuple[str, ...], began: float) -> None:
        """Record a call that passed at once, and about which there is nothing else to know.

        ``charges`` are its rules, idents and costs; ``began`` is on the clock of ``time.perf_counter``.
        """

    def record(self, call: Call, decision: Decision, seconds: float) -> None:
        """Record any other call: one that is refused, shadowed or delayed, or was decided without the store.

        ``seconds`` is the time that the decision took.
        """

    def record_request(self, scope: str, meter: Meter) -> None:
        """Record what a request has used, when its response is closed. Called if the setting ``METER`` is on."""


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
