"""Script calls of decisions, packed in RESP. The parts that depend only on the rules are packed once, then cached.

``stores/lua/decide.lua`` describes the layout of a request, ``stores/lua/records.lua`` that of a record.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from struct import Struct, pack
from typing import Final, NamedTuple, Protocol

from django_throttle.core.algorithms import CalendarWindow, Concurrency, CounterParams
from django_throttle.core.commands import Decide, RuleSet
from django_throttle.core.rate import UNAFFORDABLE_COST
from django_throttle.core.rule import Rule
from django_throttle.local.store_time import Calendar
from django_throttle.stores.redis.context import RedisContext
from django_throttle.stores.redis.pool import bulk
from django_throttle.stores.redis.pool import pack as pack_command
from django_throttle.stores.redis.scripts import OWN_KEY, Script, script
from django_throttle.stores.redis.transport import ScriptCall, begin_call

# Kinds of records, to which the number of their numbers is added.
SMALL, LARGE = 128, 192
SMALL_TIME_RANGE: Final = 2**48  # microseconds; times of small records are stored modulo this
ID_BYTES: Final = 5  # of a rule id in a record
MAX_SEPARATE_FIELDS: Final = 3  # numbers that a record's format has as fields of their own
# Flags of a request, and of the algorithm of a charge.
COMMIT, HAS_LEASE, HAS_CALENDAR = 1, 2, 4
COUNTS_DENIED, IS_SHADOW, IS_LARGE = 16, 32, 64
LEASE_ARG_COUNT: Final = 3


class RecordLayout(NamedTuple):
    """Layout of a rule's record: ``kept`` numbers of four bytes each, or of eight if it ``is_large``."""

    kept: int
    is_large: bool

    @classmethod
    def of(cls, params: CounterParams) -> RecordLayout:
        return cls(params.record_numbers, params.is_large)

    @property
    def kind(self) -> int:
        """First byte of a record."""
        return (LARGE if self.is_large else SMALL) + self.kept

    @property
    def format(self) -> str:
        """Format of a record for Lua's struct library, as ``format_of`` in records.lua returns it."""
        header, number, size = ("I6I7", "d", 8) if self.is_large else ("I6I6", "I4", 4)
        joined_fields = self.kept - MAX_SEPARATE_FIELDS
        tail = f"c{size * joined_fields}" if joined_fields > 0 else ""
        return header + number * min(self.kept, MAX_SEPARATE_FIELDS) + tail

    @property
    def bytes(self) -> int:
        """Size of a record in bytes."""
        return 13 + 8 * self.kept if self.is_large else 12 + 4 * self.kept


class Packing(NamedTuple):
    """Parts of a decision's call that are the same for all callers under a set of rules; see decide.lua."""

    #: The request, without the bounds of calendars.
    request: bytes
    #: Format of each value's records.
    formats: tuple[str, ...]
    #: For each key the index of its ident, and the suffix of the key.
    keys: tuple[tuple[int, str], ...]
    #: Indexes of the charges in the order in which they are sent. None if that is their own order.
    order: tuple[int, ...] | None
    has_lease: bool
    has_calendar: bool
    #: Bytes of a call by itself before its keys.
    begin: bytes
    #: Bytes of a call after its keys, without the arguments of a lease.
    args: bytes
    #: Format of the reply.
    reply: Struct

    @property
    def is_prepared(self) -> bool:
        """True if ``begin`` and ``args`` are complete, because no bounds of calendars are needed."""
        return not self.has_calendar

    @property
    def arg_count(self) -> int:
        """Number of arguments of a call."""
        return 1 + len(self.formats) + LEASE_ARG_COUNT * self.has_lease


@lru_cache(maxsize=4096)
def packing_of(rules: RuleSet, costs: tuple[int, ...], ident_places: tuple[int, ...] | None, commit: bool) -> Packing:
    """Return the packing of calls with these rules and costs.

    ``ident_places`` has for each rule the index of the first rule with the same ident. None means the same ident for
    all.
    """
    records: dict[int, list[int]] = {}  # indexes of the charges with a record, by index of the ident
    own_keys = []
    for place, (rule, ident) in enumerate(zip(rules.rules, ident_places or (0,) * len(rules.rules), strict=True)):
        if rule.params.wire_id < OWN_KEY:
            records.setdefault(ident, []).append(place)
        else:
            own_keys.append((place, (ident, rule.id)))
    every_params = [rule.params for rule in rules.rules]
    has_lease, has_calendar = (
        any(isinstance(params, kind) for params in every_params) for kind in (Concurrency, CalendarWindow)
    )
    flags = COMMIT * commit + HAS_LEASE * has_lease + HAS_CALENDAR * has_calendar
    formats, sizes = [], []
    for places in records.values():
        layouts = [RecordLayout.of(every_params[place]) for place in places]
        sizes += [len(places), sum(layout.bytes for layout in layouts)]
        formats.append("<" + "".join([layout.format for layout in layouts]))
    order = [place for places in records.values() for place in places] + [place for place, _ in own_keys]
    charges = [pack_charge(every_params[place], rules.rules[place], costs[place]) for place in order]
    request = b"".join([OPENING.pack(flags, len(records), len(own_keys)), *charges, pack(f"<{len(sizes)}d", *sizes)])
    keys = (*[(ident, "") for ident in records], *[key for _, key in own_keys])
    return Packing(
        request,
        tuple(formats),
        keys,
        None if order == sorted(order) else tuple(order),
        has_lease,
        has_calendar,
        begin_call(script("decide"), len(keys), 1 + len(formats) + LEASE_ARG_COUNT * has_lease),
        b"".join([bulk(request), *[bulk(text.encode()) for text in formats]]),
        Struct(f"<{2 + 3 * len(order)}d"),
    )


OPENING: Final = Struct("<3d")
CHARGE: Final = Struct("<7d")


def pack_charge(params: CounterParams, rule: Rule, cost: int) -> bytes:
    """Pack a charge for the script. ``params`` are the rule's, or have the bounds of a calendar."""
    flags = COUNTS_DENIED * rule.count_denied + IS_SHADOW * rule.is_shadow + IS_LARGE * params.is_large
    return CHARGE.pack(
        record_id(rule.id, params), params.wire_id + flags, min(cost, UNAFFORDABLE_COST), *params.numbers
    )


@lru_cache(maxsize=4096)
def record_id(rule_id: str, params: CounterParams) -> int:
    """Return the first six bytes of a rule's record as a number: the kind of the record and the rule id."""
    return RecordLayout.of(params).kind + (int.from_bytes(urlsafe_b64decode(rule_id)[:ID_BYTES], "little") << 8)


def repack(calendar: Calendar, packing: Packing, command: Decide) -> bytes:
    """Pack the request of a call with the current bounds of the calendar."""
    charges, request = list(command.charges), packing.request
    packed = [request[: OPENING.size]]
    for place in packing.order or range(len(charges)):
        rule, _, cost = charges[place]
        packed.append(pack_charge(calendar.params(rule) if rule.params.needs_calendar else rule.params, rule, cost))
    return b"".join([*packed, request[OPENING.size + CHARGE.size * len(charges) :]])


def to_charge_order(numbers: tuple[float, ...], order: Sequence[int]) -> tuple[float, ...]:
    """Sort the numbers of answers, three each, from the ``order`` of a reply to the order of the charges."""
    rows = dict(zip(order, zip(*[iter(numbers)] * 3, strict=True), strict=True))
    return tuple([number for place in range(len(order)) for number in rows[place]])


def to_sent_order(numbers: tuple[float, ...], order: Sequence[int]) -> tuple[float, ...]:
    """Sort the numbers of answers, three each, from the order of the charges to the ``order`` of a reply."""
    return tuple([number for place in order for number in numbers[3 * place : 3 * place + 3]])


@lru_cache(maxsize=64)
def packed_text(text: str) -> bytes:
    """Return a text that many calls send, in RESP."""
    return bulk(text.encode())


class Prepared(Protocol):
    """A decision that may be sent alone or with others."""

    context: RedisContext
    command: Decide
    packing: Packing
    uid: str

    @property
    def keys(self) -> Sequence[str]: ...

    def own_args(self) -> Sequence[object]: ...

    def packed_keys(self) -> bytes: ...


def packed_lease(decision: Prepared) -> bytes:
    """Return the arguments of a decision's lease, in RESP."""
    lease = (decision.command.lease or "").encode()
    return packed_text(decision.uid) + bulk(lease) + packed_text(str(decision.context.lease_ttl_ms))


class JoinedCall(ScriptCall):
    """Script call of several decisions."""

    __slots__ = ("_decisions",)

    def __init__(self, decisions: Sequence[Prepared]) -> None:
        self._decisions = decisions

    @property
    def script(self) -> Script:
        return script("decide")

    @property
    def has_derived_keys(self) -> bool:  # type: ignore[override]
        return any(decision.packing.has_lease for decision in self._decisions)

    @property
    def keys(self) -> list[str]:
        return [key for decision in self._decisions for key in decision.keys]

    @property
    def args(self) -> tuple[object, ...]:
        now = self._decisions[0].context.clock_args()
        return *now, *[arg for decision in self._decisions for arg in decision.own_args()]

    def packed(self) -> bytes:
        decisions = self._decisions
        packings = [decision.packing for decision in decisions]
        if decisions[0].context.clock or any(packing.has_calendar for packing in packings):
            return pack_command(self.by_sha())
        keys = sum([len(packing.keys) for packing in packings])
        parts = [begin_call(self.script, keys, sum([packing.arg_count for packing in packings]))]
        parts += [decision.packed_keys() for decision in decisions]
        for decision, packing in zip(decisions, packings, strict=True):
            parts.append(packing.args)
            if packing.has_lease:
                parts.append(packed_lease(decision))
        return b"".join(parts)


@dataclass(slots=True)
class ReleaseCall(ScriptCall):
    """Script call that releases a lease."""

    context: RedisContext
    uid: str
    rule_id: str
    ident: str
    lease: str

    has_derived_keys = True

    @property
    def script(self) -> Script:
        return script("release")

    @property
    def keys(self) -> Sequence[str]:
        return (self.context.key(self.rule_id, self.ident),)

    @property
    def args(self) -> Sequence[object]:
        return self.uid, self.lease

    def packed(self) -> bytes:
        key, lease = self.context.key(self.rule_id, self.ident), self.lease
        return _begin_release() + bulk(key.encode()) + packed_text(self.uid) + bulk(lease.encode())


@cache
def _begin_release() -> bytes:
    """Return the bytes that each release sends before its key."""
    return begin_call(script("release"), keys=1, args=2)
