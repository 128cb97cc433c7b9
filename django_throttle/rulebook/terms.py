"""What a rule asks of a call beyond its scope and event: its method, who makes it, what it is worth."""

from __future__ import annotations

from django.core.exceptions import SynchronousOnlyOperation
from django.utils.module_loading import import_string

from django_throttle import costs
from django_throttle.core import Rule
from django_throttle.facts import Facts


def is_about(rule: Rule, facts: Facts) -> bool:
    """Whether the rule names this method and this caller, where it names any."""
    # Django answers HEAD by what answers GET, so it must not be the way around a limit.
    if rule.methods and facts.method not in rule.methods and (facts.method, "GET" in rule.methods) != ("HEAD", True):
        return False
    return not rule.audience or any(map(facts.who.is_, rule.audience))


def cost_of(rule: Rule, facts: Facts) -> int:
    """What the call costs before the rule's own factor, or times what the rule's function makes of it.

    By a rule that counts bytes it costs its size, unless it costs nothing at all. A callable that gets no request
    has none to be priced by.
    """
    base = facts.cost if rule.unit == "calls" else facts.size * (facts.cost > 0)
    if not isinstance(rule.cost, str) or not base or facts.who.subject is None:
        return base
    what = f"call under rule {rule.name!r}"
    # On an event loop the rules are matched once more, in a thread, where a function asks the database.
    return base * costs.cost_of(
        import_string(rule.cost), facts.who.subject, what=what, lets=(SynchronousOnlyOperation,)
    )
