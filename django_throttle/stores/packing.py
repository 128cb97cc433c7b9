"""What decisions under a set of rules have in common as they are sent: packed once, then remembered."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

from django_throttle.core.algorithms import CalendarWindow, Concurrency, Plan
from django_throttle.core.commands import Decide, RuleSet
from django_throttle.core.rate import TOO_COSTLY
from django_throttle.core.rule import Rule
from django_throttle.local.store_time import Calendar
from django_throttle.stores.context import RedisContext
from django_throttle.stores.scripts import OWN_KEY, Form, Part, Script, decide_script, script
from django_throttle.stores.sync_pool import bulk
from django_throttle.stores.sync_pool import pack as pack_command
from django_throttle.stores.transport import ScriptCall, begin_call

OPENING: Final = Struct("<B")
PACK: Final = [Struct(f"<dBd{'d' * numbers}").pack for numbers in range(5)]
LEASE_ARGS: Final = 3  # of each call, see decide.lua; before those of the first one is the time
NO_TIME: Final = bulk(b"")


class Packing(NamedTuple):
    """What calls under a set of rules have in common, whoever makes them; ``packed`` is without bounds of calendars.

    ``keys`` are those of the call, each the place of its ident and its end. Where it ``is_prepared``, all have the same
    charges: ``begin`` and ``end`` are what one sends around its keys, before what a lease takes. ``numbers`` are those
    of its answers in the ``reply`` to one call.
    """

    packed: bytes
    script: Script
    parts: tuple[Part, ...]
    keys: tuple[tuple[int, str], ...]
    has_lease: bool
    has_calendar: bool
    is_prepared: bool
    begin: bytes
    end: bytes
    numbers: Struct
    reply: Struct


@lru_cache(maxsize=4096)
def packing_of(rules: RuleSet, costs: tuple[int, ...], whose: tuple[int, ...] | None, commit: bool) -> Packing:
    """``whose`` has for each rule the place of the first with the same ident; None where all have the same."""
    keys: dict[tuple[int, str], int] = {}
    parts = []
    for rule, place in zip(rules.rules, whose or (0,) * len(rules.rules), strict=True):
        key = place, "" if rule.plan.code < OWN_KEY else rule.id  # as counter_key
        parts.append(Part(Form.of(rule.plan), keys.setdefault(key, len(keys) + 1)))
    plans = {part.form.plan for part in parts}
    opening = OPENING.pack(commit + 2 * (Concurrency in plans))
    packed = [pack(rule.plan, rule, cost) for rule, cost in zip(rules.rules, costs, strict=True)]
    whole, script = b"".join([opening, *packed]), decide_script(tuple(parts))
    leases, calendars = Concurrency in plans, CalendarWindow in plans
    begin = begin_call(script, len(keys), 2 + LEASE_ARGS if leases else 1)
    around, own = (begin, bulk(whole) + NO_TIME * leases), 3 * len(parts)
    replies = Struct(f"<{own}d"), Struct(f"<{2 + own}d")
    return Packing(whole, script, tuple(parts), tuple(keys), leases, calendars, not calendars, *around, *replies)


def pack(plan: Plan, rule: Rule, cost: int) -> bytes:
    """A charge as the script reads it, see decide.lua; ``plan`` is the rule's, or has a calendar's bounds."""
    flags = rule.count_denied + 2 * rule.is_shadow
    own = len(plan.__match_args__)
    return PACK[own](record_head(rule.id, Form.of(plan)), flags, min(cost, TOO_COSTLY), *plan.numbers[:own])


ID_BYTES: Final = 5  # of a rule's id, in a record


@lru_cache(maxsize=4096)
def record_head(rule_id: str, form: Form) -> int:
    """The six bytes that begin a rule's record, as a number: its kind and the rule's id."""
    return form.kind + (int.from_bytes(urlsafe_b64decode(rule_id)[:ID_BYTES], "little") << 8)


def repack(calendar: Calendar, packed: bytes, command: Decide) -> bytes:
    """The charges of a call by what the calendar says now."""
    charges = [packed[: OPENING.size]]
    for rule, _, cost in command.charges:
        plan = calendar.plan(rule) if rule.plan.needs_calendar else rule.plan
        charges.append(pack(plan, rule, cost))
    return b"".join(charges)


@lru_cache(maxsize=64)
def packed_text(text: str) -> bytes:
    """A text that many calls send, as it is sent."""
    return bulk(text.encode())


class Prepared(Protocol):
    """A decision to be sent by itself, or with others of the same shape."""

    context: RedisContext
    command: Decide
    packing: Packing
    uid: str

    @property
    def keys(self) -> Sequence[str]: ...

    def more_args(self) -> Sequence[Any]: ...

    def packed_charges(self) -> bytes: ...

    def packed_keys(self) -> bytes: ...


def packed_lease(one: Prepared) -> bytes:
    """What a decision says of its lease, as it is sent."""
    lease = (one.command.lease or "").encode()
    return packed_text(one.uid) + bulk(lease) + packed_text(str(one.context.lease_ttl_ms))


class JoinedCall(ScriptCall):
    """One call for several decisions under rules of the same shape."""

    __slots__ = ("_decisions",)

    def __init__(self, decisions: Sequence[Prepared]) -> None:
        self._decisions = decisions

    @property
    def script(self) -> Script:
        return self._decisions[0].packing.script

    @property
    def derives(self) -> bool:  # type: ignore[override]
        return self._decisions[0].packing.has_lease

    @property
    def keys(self) -> list[str]:
        return [key for one in self._decisions for key in one.keys]

    @property
    def args(self) -> tuple[Any, ...]:
        first, *more = (one.more_args() for one in self._decisions)
        leases = [arg for args in more for arg in args[1:]]  # all have the same time
        return b"".join([one.packed_charges() for one in self._decisions]), *first, *leases

    def packed(self) -> bytes:
        decisions, packing = self._decisions, self._decisions[0].packing
        if not packing.is_prepared or decisions[0].context.clock:
            return pack_command(self.by_sha())
        count, leases, args = len(decisions), [], 1
        if packing.has_lease:
            leases, args = [NO_TIME, *map(packed_lease, decisions)], 2 + LEASE_ARGS * count
        begin = begin_call(packing.script, count * len(packing.keys), args)
        charges = bulk(b"".join([one.packing.packed for one in decisions]))
        return b"".join([begin, *[one.packed_keys() for one in decisions], charges, *leases])


@dataclass(slots=True)
class ReleaseCall(ScriptCall):
    """The call that gives a lease back."""

    context: RedisContext
    uid: str
    rule_id: str
    ident: str
    lease: str

    derives = True

    @property
    def script(self) -> Script:
        return script("release")

    @property
    def keys(self) -> Sequence[str]:
        return (self.context.key(self.rule_id, self.ident),)

    @property
    def args(self) -> Sequence[Any]:
        return self.uid, self.lease

    def packed(self) -> bytes:
        key, lease = self.context.key(self.rule_id, self.ident), self.lease
        return _begin_release() + bulk(key.encode()) + packed_text(self.uid) + bulk(lease.encode())


@cache
def _begin_release() -> bytes:
    """What each release sends before its key."""
    return begin_call(script("release"), keys=1, args=2)
