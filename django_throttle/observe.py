"""Who is told of a decision: receivers of signals, and the log."""

from __future__ import annotations

import logging
from collections import Counter
from threading import Lock

from django_throttle.core import Decision
from django_throttle.facts import Facts
from django_throttle.signals import shadowed, throttled
from django_throttle.stores.complaints import Complaints

logger = logging.getLogger("django_throttle")


def tell(facts: Facts, decision: Decision) -> None:
    """Tell of a refusal, and of one that a rule only recorded; a receiver that fails is logged by Django."""
    if not decision.allowed and throttled.has_listeners():
        throttled.send_robust(sender=None, facts=facts, decision=decision)
    if record_shadows(decision) and shadowed.has_listeners():
        shadowed.send_robust(sender=None, facts=facts, decision=decision)


async def atell(facts: Facts, decision: Decision) -> None:
    """The same, awaiting asynchronous receivers."""
    if not decision.allowed and throttled.has_listeners():
        await throttled.asend_robust(sender=None, facts=facts, decision=decision)
    if record_shadows(decision) and shadowed.has_listeners():
        await shadowed.asend_robust(sender=None, facts=facts, decision=decision)


def record_shadows(decision: Decision) -> bool:
    """Count what rules of action "shadow" would have refused; the log has one line a rule and minute."""
    found = {outcome.rule for outcome in decision.outcomes if outcome.shadow and not outcome.allowed}
    for rule in found:
        with _lock:
            _counts[rule] += 1
            told = _counts.pop(rule) if _complaints.due(rule) else 0
        if told:
            logger.warning("rule %r only records; calls it would have refused since this was last said: %d", rule, told)
    return bool(found)


_counts: Counter[str] = Counter()
_complaints = Complaints()
_lock = Lock()
