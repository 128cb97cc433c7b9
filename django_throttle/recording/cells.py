"""A cell: what one rule decided in one minute or hour, as numbers by code; and how Redis keeps one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil, frexp
from typing import Any, Final

from django_throttle.core.decision import Reason

Cell = dict[int, int]

# No code is 1, so that MessagePack in Lua never takes a cell for an array.
ALLOWED, EXTRA, SHADOWED, DEGRADED = 2, 3, 4, 5  # EXTRA: what allowed calls cost beyond 1 each, mostly nothing
BOTH: Final = 6
REASONS: Final = dict(enumerate(Reason, start=8))
CODES: Final = {reason: code for code, reason in REASONS.items()}
TIMES: Final = 32  # from here on: decisions by the power of two of their seconds, of which LEAST is the first
LEAST: Final = -20  # 2 ** -20 s is about a microsecond
LONGEST: Final = 40
OTHERS: Final = "(others)"  # the name of rules for which there was no room
MINUTE: Final = 60
HOUR: Final = 3600


@dataclass(slots=True)
class Minute:
    """What a rule decided in a minute, or an hour, that began ``at``; calls, but for ``cost``.

    ``allowed`` calls include those that are ``shadowed`` (a rule that only records would have refused) and ``degraded``
    (decided without the store). ``refused`` is by reason, and ``cost`` that of allowed calls. ``times`` has the number
    of decisions by the power of two of their seconds: bucket 8 is those of 122 to 244 µs, 9 of twice as long. ``both``
    are the calls that a candidate and its live rule would refuse.
    """

    at: datetime
    allowed: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    shadowed: int = 0
    degraded: int = 0
    cost: int = 0
    times: dict[int, int] = field(default_factory=dict)
    both: int = 0

    @property
    def calls(self) -> int:
        return self.allowed + sum(self.refused.values())

    def as_json(self) -> dict[str, Any]:
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
    return Minute(
        datetime.fromtimestamp(at, UTC),
        cell.get(ALLOWED, 0),
        {reason.value: cell[code] for code, reason in REASONS.items() if cell.get(code)},
        cell.get(SHADOWED, 0),
        cell.get(DEGRADED, 0),
        cell.get(ALLOWED, 0) + cell.get(EXTRA, 0),
        {code - TIMES: number for code, number in sorted(cell.items()) if code >= TIMES},
        cell.get(BOTH, 0),
    )


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
    whole: Minute | None = None
    for cell in cells:
        if whole is None:
            whole = Minute(cell.at)
        for name in ("allowed", "shadowed", "degraded", "cost", "both"):
            setattr(whole, name, getattr(whole, name) + getattr(cell, name))
        whole.refused = dict(Counter(whole.refused) + Counter(cell.refused))
        whole.times = dict(Counter(whole.times) + Counter(cell.times))
    return whole or Minute(datetime.fromtimestamp(0, UTC))


def percentile(times: Mapping[int, int], share: float) -> float:
    """The seconds that this share of decisions did not exceed; off by less than a factor of two. 0.0 of none."""
    place = ceil(sum(times.values()) * share)
    for bucket in sorted(times):
        if place <= times[bucket]:
            return float(2.0 ** (bucket - 1 + LEAST) * (1 + place / times[bucket]))
        place -= times[bucket]
    return 0.0


def unpacked(packed: bytes) -> Cell:
    """A cell as Lua's cmsgpack wrote it: a map of whole numbers; empty for anything else.

    Source: the MessagePack specification, formats int, float 64 and map.
    """
    try:
        count, at = _opening(packed)
        cell = {}
        for _ in range(count):
            code, at = _number(packed, at)
            cell[code], at = _number(packed, at)
    except (IndexError, ValueError):
        return {}
    return cell


def _opening(packed: bytes) -> tuple[int, int]:
    first = packed[0]
    if first >> 4 == 0x8:
        return first & 0x0F, 1
    if first == 0xDE:
        return int.from_bytes(packed[1:3]), 3
    raise ValueError("no map")


_SIZES: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}


def _number(packed: bytes, at: int) -> tuple[int, int]:
    first = packed[at]
    if first < 0x80:
        return first, at + 1
    if first >= 0xE0:
        return first - 256, at + 1
    if first not in _SIZES:
        raise ValueError("no whole number")
    end = at + 1 + _SIZES[first]
    if end > len(packed):
        raise IndexError
    return int.from_bytes(packed[at + 1 : end], signed=first >= 0xD0), end
