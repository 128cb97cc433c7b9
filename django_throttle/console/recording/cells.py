"""Cells: the decisions of a rule in a minute or an hour as numbers by code, and their encoding in Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil, frexp
from typing import Final

from django_throttle.core.decision import Reason

Cell = dict[int, int]

# The most frequent reason comes first, because a first code takes two bytes less in Redis.
REASONS: Final = dict(enumerate(sorted(Reason, key=lambda reason: reason is not Reason.EXCEEDED)))
CODES: Final = {reason: code for code, reason in REASONS.items()}
# The histogram of times has all calls. EXTRA is the cost of allowed calls beyond 1 each, FREE the number of allowed
# calls of cost 0, BOTH the calls that a candidate and its live rule would refuse, and ENFORCED the calls of a candidate
# that decides in place of its live rule.
EXTRA, FREE, SHADOWED, DEGRADED, BOTH, ENFORCED = range(24, 30)
FIRST_TIME_CODE: Final = 32  # this code and the next count decisions by the power of two of their seconds
MIN_EXPONENT: Final = -20  # of the first such code; 2 ** -20 s is about a microsecond
MAX_TIME_CODES: Final = 40
OTHERS: Final = "(others)"  # name of rules without room
MINUTE: Final = 60
HOUR: Final = 3600


@dataclass(slots=True)
class Minute:
    """Decisions of a rule in a minute or an hour, as numbers of calls."""

    at: datetime  #: beginning
    allowed: int = 0
    refused: dict[str, int] = field(default_factory=dict)  #: by reason
    shadowed: int = 0  #: allowed calls that a shadow rule would have refused
    degraded: int = 0  #: allowed calls that were decided without the store
    cost: int = 0  #: cost of the allowed calls
    #: Decisions by the power of two of their seconds: bucket 8 is 122 to 244 µs, bucket 9 twice as long.
    times: dict[int, int] = field(default_factory=dict)
    both: int = 0  #: calls that a candidate and its live rule would refuse
    enforced: int = 0  #: calls of idents for which a candidate decides in place of its live rule

    @property
    def calls(self) -> int:
        return self.allowed + sum(self.refused.values())

    def as_json(self) -> dict[str, object]:
        names = ("allowed", "refused", "shadowed", "degraded", "cost", "times")
        return {"at": self.at.isoformat(), **{name: getattr(self, name) for name in names}}


def minute_of(at: int, cell: Mapping[int, int]) -> Minute:
    """Return the decisions of a cell that began at this time, in seconds since 1970."""
    refused = {reason.value: cell[code] for code, reason in REASONS.items() if cell.get(code)}
    times = {code - FIRST_TIME_CODE: number for code, number in sorted(cell.items()) if code >= FIRST_TIME_CODE}
    allowed = max(0, sum(times.values()) - sum(refused.values()))
    cost = allowed + cell.get(EXTRA, 0) - cell.get(FREE, 0)
    shadowed, degraded, *candidate = (cell.get(code, 0) for code in (SHADOWED, DEGRADED, BOTH, ENFORCED))
    return Minute(datetime.fromtimestamp(at, UTC), allowed, refused, shadowed, degraded, cost, times, *candidate)


def bucket_of(seconds: float) -> int:
    """Return the code of a decision with this duration."""
    return exponent_code(frexp(seconds)[1]) if seconds > 0 else FIRST_TIME_CODE


def exponent_code(exponent: int) -> int:
    """Return the code of decisions that took from ``2 ** (exponent - 1)`` to ``2 ** exponent`` seconds."""
    return FIRST_TIME_CODE + min(MAX_TIME_CODES, max(0, exponent - MIN_EXPONENT))


def add(cell: Cell, more: Mapping[int, int]) -> None:
    for code, number in more.items():
        cell[code] = cell.get(code, 0) + number


def total(cells: Iterable[Minute]) -> Minute:
    """Return the sum of cells, with the beginning of the first."""
    cells = tuple(cells)
    result = Minute(cells[0].at if cells else datetime.fromtimestamp(0, UTC))
    for cell in cells:
        for name in ("allowed", "shadowed", "degraded", "cost", "both", "enforced"):
            setattr(result, name, getattr(result, name) + getattr(cell, name))
        result.refused = dict(Counter(result.refused) + Counter(cell.refused))
        result.times = dict(Counter(result.times) + Counter(cell.times))
    return result


def percentile(times: Mapping[int, int], share: float) -> float:
    """Return the seconds that a share of the decisions did not exceed, within a factor of two. Return 0.0 for none."""
    rank = ceil(sum(times.values()) * share)
    for bucket in sorted(times):
        if rank <= times[bucket]:
            return float(2.0 ** (bucket - 1 + MIN_EXPONENT) * (1 + rank / times[bucket]))
        rank -= times[bucket]
    return 0.0


def unpacked(packed: bytes) -> Cell:
    """Return a cell from the encoding of record.lua: numbers by code; after a 0, a number of codes to skip."""
    cell: Cell = {}
    code = at = 0
    while at < len(packed) and code <= FIRST_TIME_CODE + MAX_TIME_CODES:
        value, at = number_at(packed, at)
        if value:
            cell[code], step = value, 1
        else:
            step, at = number_at(packed, at)
        code += step
    return cell


def number_at(packed: bytes, at: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset of the next number.

    Each byte has seven bits, the lowest first. The last byte is below 128.
    """
    number = shift = 0
    for byte in packed[at : at + 8]:
        number |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            break
    return number, at
