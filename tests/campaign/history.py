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
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

BEGUN, ENDED, RELEASED, ODD, QUEUED = "+", "=", "-", "!", "~"
QUICK = 0.1  # seconds; what took no longer needs no excuse


@dataclass(slots=True)
class Operation:
    """One call: what it asked for, from when until when, and what it was told.

    ``outcome`` is ok, refused, or unknown: no answer, or one that says nothing of what the server has counted.
    ``alone`` is True where the process decided without the server. ``wait`` is what a queue makes it wait, ``took`` how
    long the answer took without moments in which the process had no processor, ``end`` when what it holds was given
    back.
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
    end: float = inf

    def __str__(self) -> str:
        alone = " alone" if self.alone else ""
        when = f"{self.invoked:.4f} to {self.returned:.4f}"
        return f"process {self.process}: {self.cost} of {self.limit}, {when}, {self.outcome}{alone}"


class Fault(NamedTuple):
    """From when until when what was done; how often rates, and slots, may have been forgotten in it."""

    begin: float
    end: float
    name: str
    losses: int = 0
    slots_lost: int = 0

    def later(self, seconds: float) -> Fault:
        """The same by another clock."""
        return self._replace(begin=self.begin + seconds, end=self.end + seconds)


@dataclass
class History:
    """A round: its operations and faults, in seconds of it, and what was found when all was quiet again.

    ``processes`` is how many shared the limits by their settings, ``killed`` when each dead one was still alive.
    ``counted`` is what the server has counted of a limit, ``held`` the slots it counts and those truly held,
    ``immortal`` its keys without a TTL. ``odd`` is what clients did not expect. ``server`` is which it was, ``log``
    what it says of failovers.
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

    def of(self, limit: str) -> list[Operation]:
        return [one for one in self.operations if one.limit == limit]

    def losses(self, begin: float, end: float) -> int:
        """How often rates may have been forgotten in a span."""
        return sum(fault.losses for fault in self.faults if fault.begin < end and fault.end > begin)

    def timed(self) -> list[Operation]:
        """Those that had a processor to be answered on."""
        starved = [fault for fault in self.faults if fault.name == "starve"]
        return [
            one
            for one in self.operations
            if not any(fault.begin < one.returned and fault.end > one.invoked for fault in starved)
        ]

    def incarnations(self) -> int:
        """How many processes called, those that were killed included."""
        return len({one.process for one in self.operations})


class Recorder:
    """Writes the file of one client process; safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *row: Any) -> None:
        os.write(self._file, json.dumps(row).encode() + b"\n")


def read(folder: Path, since: float) -> tuple[list[Operation], list[str]]:
    """The operations of all clients, their times from a moment on, and what they did not expect."""
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
                case "~":
                    samples.append((row[0] - since, row[1]))
                case "!":
                    odd.append(f"process {process}: {row[0]}")
        for one in known.values():
            if samples and one.took > QUICK:
                one.took = min(one.took, one.returned - one.invoked - _queued(samples, one))
        operations += known.values()
    return operations, odd


def _rows(path: Path) -> Iterator[list[Any]]:
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # killed as it wrote
            return


def _queued(samples: list[tuple[float, float]], one: Operation) -> float:
    """How long its process waited for a processor meanwhile, by the samples before and after."""
    first = max(0, bisect_right(samples, (one.invoked, inf)) - 1)
    last = min(len(samples) - 1, bisect_left(samples, (one.returned, 0.0)))
    return samples[last][1] - samples[first][1]


def _answered(one: Operation, since: float, returned: float, *answer: Any) -> None:
    one.returned = returned - since
    allowed, one.alone, one.wait, one.took = answer
    one.outcome = "ok" if allowed else "unknown" if one.alone else "refused"
