"""What a seed makes: rounds, the faults of each, and what every lane of every process does, whatever comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tests.lab.campaign.limits import LIMITS

SERVERS = ("Redis", "Valkey", "Sentinel", "Cluster")
PROCESSES = 3
THREADS = 2
TASKS = 4
LOAD_SECONDS = 14.0
QUIET_SECONDS = 1.0
CALM_EVERY = 5  # one round in so many has faults at its beginning only, and then
CALM_SECONDS = 15.0  # so long a time without any: until a damper has settled
CALM_FROM = 3.0
POSTGRESQL_EVERY = 3  # one round in so many keeps its rules there, the others in a SQLite file
REST_SECONDS = 5.5  # without an edit before the database is lost, so that readers have closed their connections
EDITED = (10, 20, 30)  # the door's limits in the database; in settings it is another one
PAUSE_SECONDS = 0.012
CALLERS = 2_000
BLOCK = 40  # calls of a lane of which FAVOURED go to one limit
FAVOURED = 0.3

# What may happen to each kind of server: name, least and most seconds.
PROXIED = (
    ("delay", 0.3, 2.0), ("swallow_reply", 0.1, 1.0), ("swallow_and_close", 0.1, 1.0), ("reset", 0.1, 1.0),
    ("refuse", 0.1, 2.5), ("trickle", 0.1, 1.0), ("dead", 0.1, 2.5), ("stop", 0.2, 2.5), ("kill", 0.1, 1.5),
    ("old copy", 0.1, 0.5), ("clock", 0.0, 0.2), ("full", 0.3, 2.0), ("evict", 0.3, 2.0),
)  # fmt: skip
WATCHED = (
    ("stop primary", 0.5, 4.0), ("kill primary", 0.1, 1.0), ("stop sentinel", 0.5, 3.0), ("kill sentinel", 0.1, 1.0),
)  # fmt: skip
SHARDED = (("stop node", 0.5, 4.0), ("kill node", 0.1, 1.0), ("evict", 0.3, 2.0))
CLIENTS = (
    ("stop client", 0.1, 1.0), ("silence client", 5.5, 7.0), ("kill client", 0.1, 1.0), ("starve", 0.5, 2.0),
    ("client clock", 0.0, 0.1), ("lock database", 0.5, 2.5), ("lose database", 0.5, 2.5),
    ("start without database", 0.5, 1.5), ("start as database is lost", 0.5, 1.5),
)  # fmt: skip
OLDEST_COPY = 5.0  # seconds
FAULTS = {"Redis": PROXIED, "Valkey": PROXIED, "Sentinel": WATCHED, "Cluster": SHARDED}
DEALT = 2  # kinds of faults that a round plays for certain
LEAST_GAP = 0.3
# Whole windows, so that theirs begin where they did; beyond seven minutes keys have expired.
STEPS = (10, 60, 300, 3600, -10, -60, -3600)


Kind = tuple[str, float, float]


def _room(kind: Kind) -> float:
    """The most that a fault takes, with what comes before it and the least pause after it."""
    name, _, longest = kind
    return longest + LEAST_GAP + (OLDEST_COPY if name == "old copy" else 0.0)


class Step(NamedTuple):
    """A fault: when it begins, in seconds of the load, how long it lasts, and a number to choose by."""

    name: str
    at: float
    seconds: float
    choice: int

    def __str__(self) -> str:
        return f"{self.name} at {self.at:.1f} for {self.seconds:.1f} s"


@dataclass(frozen=True)
class Round:
    seed: int
    number: int

    @property
    def server(self) -> str:
        return SERVERS[(self.seed + self.number) % len(SERVERS)]

    @property
    def database(self) -> str:
        return "PostgreSQL" if self.number % POSTGRESQL_EVERY == 1 else "SQLite"

    @property
    def is_calm(self) -> bool:
        return self.number % CALM_EVERY == 3

    @property
    def seconds(self) -> float:
        return CALM_FROM + CALM_SECONDS if self.is_calm else LOAD_SECONDS

    def faults(self) -> tuple[list[Step], list[Step]]:
        gap = 1.0 if self.server in ("Redis", "Valkey") else 2.5
        return list(self._lane(self.server, FAULTS[self.server], gap)), list(self._lane("clients", CLIENTS, 2.5))

    def edits(self) -> list[tuple[float, int]]:
        """The limits of the door that are written into the database, the first before the load, and when.

        One is written in the middle of each loss of the database, by an operator who has it open.
        """
        chance = self._chance("edits")
        lost = [step for step in self.faults()[1] if step.name == "lose database"]
        at, times = 0.0, [step.at + step.seconds / 2 for step in lost]
        while at < self.seconds - QUIET_SECONDS:
            if at == 0.0 or not any(step.at - REST_SECONDS < at < step.at + step.seconds for step in lost):
                times.append(at)
            at += chance.uniform(1.0, 3.0)
        found = list[tuple[float, int]]()
        for at in sorted(times):
            before = [limit for _, limit in found[-1:]]
            found.append((at, chance.choice([limit for limit in EDITED if limit not in before])))
        return found

    def _lane(self, lane: str, kinds: Sequence[Kind], gap: float) -> Iterator[Step]:
        chance = self._chance(lane)
        at = chance.uniform(0.5, 1.0 + gap)
        until = CALM_FROM if self.is_calm else LOAD_SECONDS - QUIET_SECONDS
        dealt = [] if self.is_calm else self._dealt(lane, kinds)
        while dealt or at < until:
            at = min(at, until - sum(map(_room, dealt)))
            name, least, longest = dealt.pop(0) if dealt else chance.choice(kinds)
            seconds = chance.uniform(least, longest)
            if name == "old copy":
                yield Step("copy", at, 0.0, 0)
                at = min(at + chance.uniform(0.0, OLDEST_COPY), until)
            yield Step(name, at, min(seconds, until - at), chance.randrange(1000))
            at += seconds + chance.uniform(LEAST_GAP, 2 * gap)

    def _dealt(self, lane: str, kinds: Sequence[Kind]) -> list[Kind]:
        turn = self.number if lane == "clients" else self.number // len(SERVERS)
        shuffled = Random(f"{self.seed}/{lane}").sample(kinds, len(kinds))
        return [shuffled[(turn * DEALT + place) % len(kinds)] for place in range(DEALT)]

    def calls(self, process: int, lane: int) -> Iterator[PlannedCall]:
        chance = self._chance(f"{process}/{lane}")
        names, weights = list(LIMITS), [limit.weight for limit in LIMITS.values()]
        done, favourite = 0, names[0]
        while True:
            if done % BLOCK == 0:  # all lanes turn to the same limit at about the same time
                favourite = self._chance(f"favourite {done // BLOCK}").choice(names)
            done += 1
            name = favourite if chance.random() < FAVOURED else chance.choices(names, weights)[0]
            cost = 1 if LIMITS[name].kind in ("lease", "calm") else chance.choice((1, 1, 1, 1, 2, 5))
            yield PlannedCall(
                name, cost, chance.expovariate(1 / PAUSE_SECONDS), chance.randrange(1, 40), chance.randrange(CALLERS)
            )

    def _chance(self, what: str) -> Random:
        return Random(f"{self.seed}/{self.number}/{what}")


class PlannedCall(NamedTuple):
    """A call, the pause before it in seconds, for how many more calls of its lane it holds a slot, and whose it is."""

    limit: str
    cost: int
    pause: float
    holds: int
    who: int
