"""A cell: what one rule decided in one minute or hour, as numbers by code; and how Redis keeps one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil, frexp
from typing import Final

from django_throttle.core.decision import Reason

Cell = dict[int, int]

# The usual reason first: a code that has none before it takes two bytes less in Redis.
REASONS: Final = dict(enumerate(sorted(Reason, key=lambda reason: reason is not Reason.EXCEEDED)))
CODES: Final = {reason: code for code, reason in REASONS.items()}
# Allowed calls are those in the histogram that were not refused. EXTRA: what they cost beyond 1 each, mostly nothing;
# FREE: those that cost nothing.
# ENFORCED: those for which a candidate would have refused in place of its live rule.
EXTRA, FREE, SHADOWED, DEGRADED, BOTH, ENFORCED = range(24, 30)
TIMES: Final = 32  # from here on: decisions by the power of two of their seconds, of which LEAST is the first
LEAST: Final = -20  # 2 ** -20 s is about a microsecond
LONGEST: Final = 40
OTHERS: Final = "(others)"  # the name of rules for which there was no room
MINUTE: Final = 60
HOUR: Final = 3600


@dataclass(slots=True)
class Minute:
    """Decisions of a rule in the minute or hour that began ``at``: numbers of calls, except for ``cost``.

    ``allowed`` calls include ``shadowed`` ones (a rule that only records would have refused them) and ``degraded`` ones
    (decided without the store). ``refused`` has a number for each reason, ``cost`` the cost of allowed calls. ``times``
    has the number of decisions by the power of two of their seconds: bucket 8 is 122 to 244 µs, 9 twice as long.
    ``both`` is the number that a candidate and its live rule would refuse. ``enforced`` counts calls of idents for
    which the candidate holds already.
    """

    at: datetime
    allowed: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    shadowed: int = 0
    degraded: int = 0
    cost: int = 0
    times: dict[int, int] = field(default_factory=dict)
    both: int = 0
    enforced: int = 0

    @property
    def calls(self) -> int:
        return self.allowed + sum(self.refused.values())

    def as_json(self) -> dict[str, object]:
        return {
            "at": self.at.isoformat(),
            "allowed": self.allowed,
            "refused": self.refused,
            "shadowed": self.shadowed,
            "degraded": self.degraded,
            "cost": self.cost,
            "times": self.times,
        }


def minute_of(at: int, cell: Mapping[int, int]) -> Minute:
    """The cell of the minute or hour that began at this Unix time."""
    refused = {reason.value: cell[code] for code, reason in REASONS.items() if cell.get(code)}
    times = {code - TIMES: number for code, number in sorted(cell.items()) if code >= TIMES}
    allowed = max(0, sum(times.values()) - sum(refused.values()))
    cost = allowed + cell.get(EXTRA, 0) - cell.get(FREE, 0)
    shadowed, degraded, *candidate = (cell.get(code, 0) for code in (SHADOWED, DEGRADED, BOTH, ENFORCED))
    return Minute(datetime.fromtimestamp(at, UTC), allowed, refused, shadowed, degraded, cost, times, *candidate)


def bucket_of(seconds: float) -> int:
    """The code of a decision that took so long."""
    return place_of(frexp(seconds)[1]) if seconds > 0 else TIMES


def place_of(exponent: int) -> int:
    """The code of decisions of less than two to this power of seconds, and of half of that or more."""
    return TIMES + min(LONGEST, max(0, exponent - LEAST))


def add(cell: Cell, more: Mapping[int, int]) -> None:
    for code, number in more.items():
        cell[code] = cell.get(code, 0) + number


def total(cells: Iterable[Minute]) -> Minute:
    """All of them as one, that began when the first did."""
    cells = tuple(cells)
    whole = Minute(cells[0].at if cells else datetime.fromtimestamp(0, UTC))
    for cell in cells:
        for name in ("allowed", "shadowed", "degraded", "cost", "both", "enforced"):
            setattr(whole, name, getattr(whole, name) + getattr(cell, name))
        whole.refused = dict(Counter(whole.refused) + Counter(cell.refused))
        whole.times = dict(Counter(whole.times) + Counter(cell.times))
    return whole


def percentile(times: Mapping[int, int], share: float) -> float:
    """The seconds that this share of decisions did not exceed; off by less than a factor of two. 0.0 of none."""
    place = ceil(sum(times.values()) * share)
    for bucket in sorted(times):
        if place <= times[bucket]:
            return float(2.0 ** (bucket - 1 + LEAST) * (1 + place / times[bucket]))
        place -= times[bucket]
    return 0.0


def unpacked(packed: bytes) -> Cell:
    """A cell as record.lua wrote it: numbers by code, in their order; after a 0, how many codes have none."""
    cell: Cell = {}
    code = at = 0
    while at < len(packed) and code <= TIMES + LONGEST:
        value, at = number_at(packed, at)
        if value:
            cell[code], step = value, 1
        else:
            step, at = number_at(packed, at)
        code += step
    return cell


def number_at(packed: bytes, at: int) -> tuple[int, int]:
    """The number there, seven bits a byte and the lowest first, and where the next begins; a byte below 128 ends it."""
    number = shift = 0
    for byte in packed[at : at + 8]:
        number |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            break
    return number, at
