"""Which rules count a call, as overrides have them, and why the others that cover its scope do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from django_throttle.call_facts import Facts
from django_throttle.core import Override, Rule
from django_throttle.core.algorithms.base import listed
from django_throttle.core.descriptions import events as events_in_words
from django_throttle.core.options import EVENTS
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.rulebook.snapshot import Snapshot, rule_cost, takes_method

# The events of one call, by the event that names it: those that its door asks after together.
TOGETHER: Final = {"request": ("request", "inflight"), "connect": ("connect", "connection")}


@dataclass(frozen=True, slots=True)
class Call:
    """The call that is asked about; an empty text stands for any scope, method or event.

    Raises ValueError for an event that there is not.
    """

    scope: str = ""
    method: str = ""
    event: str = ""

    def __post_init__(self) -> None:
        if self.event and self.event not in EVENTS:
            raise ValueError(f"the event is one of {', '.join(EVENTS)}, such as {EVENTS[0]}, not {self.event[:60]!r}")

    @property
    def events(self) -> tuple[str, ...]:
        """The events that its door would ask after; a call with a method is a request."""
        event = self.event or ("request" if self.method else "")
        return TOGETHER.get(event, (event,)) if event else EVENTS


class Counting(NamedTuple):
    """A rule that counts the call under ``ident``, with this cost before its own factor; one of bytes at least 1.

    ``held`` is the rule as it holds by the ``override`` that decides about it, None where that exempts the caller.
    ``assumed`` says what of the caller had to be assumed.
    """

    rule: Rule
    held: Rule | None
    override: Override | None
    ident: str
    cost: int
    assumed: str = ""


class NotCounting(NamedTuple):
    """A rule that covers the scope, and why it does not count the call."""

    rule: Rule
    why: str


def coverage(snapshot: Snapshot, call: Call, who: KnownCaller) -> Iterator[Counting | NotCounting]:
    """Each enabled rule that covers the scope, in the order of their names."""
    ranked = snapshot.overrides.of(who)
    rules = snapshot.covering(call.scope) if call.scope else [rule for rule in snapshot.rules if rule.enabled]
    for rule in rules:
        if why := _why_not(rule, call, who):
            yield NotCounting(rule, why)
            continue
        override, held = snapshot.overrides.deciding(rule, ranked)
        assumed = f"if the caller is {' or '.join(rule.audience)}" if _is_unknown(rule, who) else ""
        charged = rule if held is None else held
        cost = 1 if charged.is_plain else rule_cost(charged, Facts(call.scope, call.events, who, size=1))
        yield Counting(rule, held, override, who.ident(rule.key) or who.name, cost, assumed)


def _why_not(rule: Rule, call: Call, who: KnownCaller) -> str:
    if set(rule.events).isdisjoint(call.events):
        return f"it counts {events_in_words(rule.events)}"
    if rule.methods and call.method and not takes_method(rule, call.method):
        return f"it counts {listed(rule.methods)} only"
    if rule.key == "connection" or who.ident(rule.key) is None:
        return who.why_not(rule.key)
    if rule.audience and not _is_unknown(rule, who) and not any(map(who.is_, rule.audience)):
        return f"it is for {' or '.join(rule.audience)} only, and {who.name} is not"
    return ""


def _is_unknown(rule: Rule, who: KnownCaller) -> bool:
    """Whether the rule names an audience, and nobody can tell whether the caller belongs to it."""
    return bool(rule.audience) and not who.is_certain and not any(map(who.is_, rule.audience))
