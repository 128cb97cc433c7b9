"""The only entrance: each decision comes in here once, and goes to whoever wants to know.

Nobody who is told can make a call fail: what a hook or a receiver raises is logged, and the call goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from django.dispatch import Signal

from django_throttle.core import Decision
from django_throttle.facts import Facts
from django_throttle.observe import hooks, logs
from django_throttle.signals import quota_warning, shadowed, store_failed, throttled

logger = logging.getLogger("django_throttle")

Told = tuple[Signal, dict[str, Any]]

_allowed = attrgetter("allowed")


def tell(facts: Facts, decision: Decision, seconds: float = 0.0) -> None:
    """Tell hooks of a decision that took so many seconds, and the log and receivers of what is not ordinary."""
    for signal, told in _happened(facts, decision, seconds):
        try:
            signal.send_robust(sender=None, facts=facts, **told)
        except Exception:  # an asynchronous receiver, where an event loop runs in this thread
            logger.exception("a receiver could not be called")


async def atell(facts: Facts, decision: Decision, seconds: float = 0.0) -> None:
    """The same, awaiting asynchronous receivers."""
    for signal, told in _happened(facts, decision, seconds):
        await signal.asend_robust(sender=None, facts=facts, **told)


def _happened(facts: Facts, decision: Decision, seconds: float) -> tuple[Told, ...]:
    """Call the hooks and write the log; returns the signals that have receivers, with what those are told."""
    if hooks.installed():
        hooks.call(hooks.Report(facts, decision, seconds))
    ordinary = decision.allowed and not decision.degraded and not decision.crossed
    if ordinary and all(map(_allowed, decision.outcomes)):
        return ()
    logs.write(facts, decision)
    return tuple(told for told in _signals(decision) if told[0].has_listeners())


def _signals(decision: Decision) -> Iterator[Told]:
    whole = {"decision": decision}
    if not decision.allowed:
        yield throttled, whole
    if any(outcome.shadow and not outcome.allowed for outcome in decision.outcomes):
        yield shadowed, whole
    if decision.degraded:
        yield store_failed, whole
    for crossing in decision.crossed:
        yield quota_warning, {"outcome": crossing.outcome, "share": crossing.share}
