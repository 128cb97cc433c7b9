"""What a run came to, in figures; rates as multiples of the limit."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Final, NamedTuple

from django_throttle.damper.simulation.world import BIN, Setting, Track

PER_SECOND: Final = round(1 / BIN)
SETTLED: Final = 36.0  # seconds at the end of a phase that count as settled
OVER: Final = 1.1


class Figures(NamedTuple):
    """``achieved`` and ``deviation`` (of six-second rates) of the settled end; ``reaction`` is the seconds after the
    last rise until no two seconds admit 1.1 × the limit any more; ``overshoot`` what was admitted above the
    limit until then, in seconds of the limit; ``first`` the rate of the first two seconds after a rise.
    """

    achieved: float
    deviation: float
    reaction: float
    overshoot: float
    first: float
    refused: int
    attempted: int


def figures(setting: Setting, track: Track) -> Figures:
    """The figures of a run under excess."""
    rises = setting.shape.changes_at[:1] or (0.0,)
    start, end = round(rises[0] * PER_SECOND), _end(setting)
    excess = track.admitted[start:end]
    tail = track.admitted[max(start, end - round(SETTLED * PER_SECOND)) : end]
    rates = _rates(tail, 6.0, setting.limit)
    reaction = _reaction(excess, setting.limit)
    until = round(reaction * PER_SECOND)
    return Figures(
        fmean(rates),
        pstdev(rates),
        reaction,
        max(0.0, sum(excess[:until]) / setting.limit - reaction),
        sum(excess[: 2 * PER_SECOND]) / (2 * setting.limit),
        sum(track.attempted) - sum(track.admitted),
        sum(track.attempted),
    )


def release(setting: Setting, track: Track) -> float:
    """Seconds after the demand has fallen until nothing is refused any more."""
    fell = round(setting.shape.changes_at[-1] * PER_SECOND)
    refused = [a - b for a, b in zip(track.attempted[fell:], track.admitted[fell:], strict=True)]
    return max((place + 1 for place, number in enumerate(refused) if number), default=0) / PER_SECOND


def unfairness(setting: Setting, track: Track) -> float:
    """How far a node's share of what is admitted is from its share of what is attempted, at worst, as a share of it."""
    seconds = slice(round(_end(setting) / PER_SECOND - SETTLED), round(_end(setting) / PER_SECOND))
    sums = [
        (sum(a for a, _ in told[seconds]), sum(b for _, b in told[seconds])) for told in track.by_node.values() if told
    ]
    attempted, admitted = sum(a for a, _ in sums), sum(b for _, b in sums)
    return max(abs((b / admitted) / (a / attempted) - 1) for a, b in sums if a)


def _end(setting: Setting) -> int:
    changes = setting.shape.changes_at
    return round((changes[1] if len(changes) > 1 else setting.shape.seconds) * PER_SECOND)


def _rates(admitted: Sequence[int], seconds: float, limit: int) -> list[float]:
    step = round(seconds * PER_SECOND)
    return [sum(admitted[at : at + step]) / (seconds * limit) for at in range(0, len(admitted) - step + 1, step)]


def _reaction(admitted: Sequence[int], limit: int) -> float:
    step = 2 * PER_SECOND
    most = OVER * limit * 2
    late = [at + step for at in range(len(admitted) - step + 1) if sum(admitted[at : at + step]) > most]
    # From the end of the last two seconds that had too much, less the two seconds themselves.
    return max(0, max(late, default=0) - step + 1) / PER_SECOND if late else 0.0
