"""What happened: every operation with its invocation and its return, every fault with what it may have lost.

Each client process writes a file of its own, a JSON list a line, at once: what it wrote outlives its SIGKILL. All times
are CLOCK_MONOTONIC, which the processes of one machine share.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

BEGUN, ENDED, RELEASED, FREED, ODD, QUEUED = "+", "=", "-", ".", "!", "~"
QUICK = 0.1  # seconds; what took no longer needs no excuse
RECOVERY = 1.0  # after a fault, until everything is as if there had been none


@dataclass(slots=True)
class Operation:
    """One call: what it asked for, from when until when, and what it was told.

    ``outcome`` is ok, refused, or unknown: no answer, or one that says nothing of what the server has counted.
    ``alone`` is True where the process decided without the server. ``wait`` is what a queue makes it wait, ``took`` how
    long the answer took without moments in which the process had no processor, ``end`` when what it holds was given
    back, and ``freed`` how long that took. ``said`` is the limit that it went by. ``asked`` is False where the process
    knew that the server does not answer, and sent nothing.
    """

    process: int
    limit: str
    cost: int
    invoked: float
    returned: float = inf
    outcome: str = "unknown"
    alone: bool = False
    wait: float = 0.0
    took: float = 0.0
    said: int | None = None
    end: float = inf
    freed: float = 0.0
    asked: bool = True

    def __str__(self) -> str:
        alone = " alone" if self.alone else ""
        when = f"{self.invoked:.4f} to {self.returned:.4f}"
        return f"process {self.process}: {self.cost} of {self.limit}, {when}, {self.outcome}{alone}"


class Fault(NamedTuple):
    """From when until when what was done; how often rates, and slots, may have been forgotten in it.

    ``process`` is the one that it was done to; None where it concerns all.
    """

    begin: float
    end: float
    name: str
    losses: int = 0
    slots_lost: int = 0
    process: int | None = None

    def later(self, seconds: float) -> Fault:
        return self._replace(begin=self.begin + seconds, end=self.end + seconds)


class Edit(NamedTuple):
    """A limit of the door in the database, from some moment between ``begin`` and ``end`` on."""

    limit: int
    begin: float
    end: float

    def later(self, seconds: float) -> Edit:
        return self._replace(begin=self.begin + seconds, end=self.end + seconds)


@dataclass
class History:
    """A round: its operations and faults, in seconds of it, and what was found when all was quiet again.

    ``processes`` is how many shared the limits by their settings, ``killed`` when each dead one was still alive.
    ``counted`` is what the server has counted of a limit, ``held`` the slots it counts and those truly held,
    ``immortal`` its keys without a TTL. ``odd`` is what clients did not expect. ``server`` is which it was, ``log``
    what it says of failovers. ``edits`` are those of the door's rule.
    """

    operations: list[Operation]
    faults: list[Fault] = field(default_factory=list)
    processes: int = 1
    killed: dict[int, float] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    immortal: Sequence[str] = ()
    odd: Sequence[str] = ()
    server: str = ""
    log: Sequence[str] = ()
    edits: Sequence[Edit] = ()

    def of(self, limit: str) -> list[Operation]:
        return [one for one in self.operations if one.limit == limit]

    @cached_property
    def alone(self) -> list[Operation]:
        return [one for one in self.operations if one.alone]

    def losses(self, begin: float, end: float) -> int:
        return sum(fault.losses for fault in self.faults if fault.begin < end and fault.end > begin)

    def played(self, begin: float, end: float, *names: str) -> list[Fault]:
        return [
            fault
            for fault in self.faults
            if fault.begin < end and fault.end > begin and (not names or fault.name in names)
        ]

    def calm(self, begin: float, end: float) -> float:
        """The seconds of a span in which nothing was done to anybody, nor shortly before."""
        left, since = 0.0, begin
        for fault in sorted(self.faults, key=lambda fault: fault.begin):
            left += max(0.0, min(fault.begin, end) - since)
            since = max(since, fault.end + RECOVERY)
        return left + max(0.0, end - since)

    def last_loss(self, *unless: str) -> float:
        """Until when counts may have been forgotten, but for faults of these names; -inf where none were."""
        return max((one.end for one in self.faults if one.losses and one.name not in unless), default=-inf)


class Recorder:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *row: Any) -> None:
        os.write(self._file, json.dumps(row).encode() + b"\n")


def read(folder: Path, since: float) -> tuple[list[Operation], list[str]]:
    operations: list[Operation] = []
    odd: list[str] = []
    for path in sorted(folder.glob("client-*.log")):
        process, known = int(path.stem.partition("-")[2]), dict[int, Operation]()
        samples: list[tuple[float, float]] = []
        for kind, *row in _rows(path):
            match kind:
                case "+":
                    number, limit, cost, invoked = row
                    known[number] = Operation(process, limit, cost, invoked - since)
                case "=":
                    number, *answer = row
                    _answered(known[number], since, *answer)
                case "-":
                    known[row[0]].end = row[1] - since
                case ".":
                    known[row[0]].freed = row[1]
                case "~":
                    samples.append((row[0] - since, row[1]))
                case "!":
                    odd.append(f"process {process}: {row[0]}")
        for one in known.values() if samples else ():
            one.took = _without_queue(samples, one.invoked, one.returned, one.took)
            one.freed = _without_queue(samples, one.end, one.end + one.freed, one.freed)
        operations += known.values()
    return operations, odd


def _rows(path: Path) -> Iterator[list[Any]]:
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # killed as it wrote
            return


def _without_queue(samples: list[tuple[float, float]], begin: float, end: float, took: float) -> float:
    """What it took, less the time its process waited for a processor meanwhile, by the samples before and after."""
    if took <= QUICK:
        return took
    first = max(0, bisect_right(samples, (begin, inf)) - 1)
    last = min(len(samples) - 1, bisect_left(samples, (end, 0.0)))
    return min(took, end - begin - (samples[last][1] - samples[first][1]))


def _answered(one: Operation, since: float, returned: float, *answer: Any) -> None:
    one.returned = returned - since
    allowed, one.alone, one.wait, one.took, one.said, one.asked = answer
    one.outcome = "ok" if allowed else "unknown" if one.alone else "refused"
