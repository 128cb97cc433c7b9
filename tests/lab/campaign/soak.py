"""``make soak``: the campaign's load for long, with edited rules and kills; ends with 1 where something grew.

Load and rest take turns. When all rest, what processes and server hold is written down; a process that is killed is
always the same one of them, so that the others show what they gather in all that time.
"""

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from testproject.services import stop_on_signals
from tests.conftest import immortal_keys
from tests.lab.campaign.limits import WINDOW, rate_of
from tests.lab.campaign.plan import EDITED, LOAD_SECONDS, PROCESSES, Round, Step
from tests.lab.campaign.rounds import Crowd, configured, load, slots
from tests.lab.campaign.stage import Stage, stage
from tests.servers import wait_until

WARM = 3  # turns, until caches are full and every kind of connection has been made
MEMORY = 4_096  # kB that a process may have more, however long: what Python keeps of the largest turn
# What the server may have more of at the end of a turn, and what each process may.
ALLOWED = {"slots": 0, "keys": 20, "immortal": 0, "server kB": 2_048, "memory": MEMORY, "threads": 1, "files": 4}
LINES = 40  # of the log of a process in one turn: a line when an outage begins, one when it ends, and complaints


class Turn(NamedTuple):
    server: dict[str, int]
    processes: list[dict[str, Any]]


class Shift(Round):
    """A round on one server that keeps its clock, where the same process is killed each time."""

    server, database, is_calm = "Redis", "SQLite", False

    def faults(self) -> tuple[list[Step], list[Step]]:
        of_servers, of_clients = super().faults()
        kept = [step for step in of_servers if step.name != "clock"]  # keys would live for hours
        return kept, [step._replace(choice=PROCESSES - 1) for step in of_clients]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.campaign.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    stop_on_signals()
    print(f"soak: seed {given.seed}, {given.minutes:g} minutes", flush=True)
    with stage("Redis") as servers, ExitStack() as stack:
        turns = soak(servers, stack, given.seed, time.monotonic() + 60 * given.minutes)
    return verdict(turns)


def soak(servers: Stage, stack: ExitStack, seed: int, until: float) -> list[Turn]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="throttle-soak-")))
    configured()
    crowd = Crowd(stack, Shift(seed, 0), servers.url, folder, records=False)
    turns: list[Turn] = []
    while len(turns) <= WARM or time.monotonic() < until - LOAD_SECONDS:
        this = Shift(seed, len(turns))
        load(this, servers, crowd, time.monotonic())
        crowd.editor.write(limit_of(this.number))
        turns.append(rested(servers, crowd))
        print(f"turn {this.number}: {turns[-1]}", flush=True)
    crowd.end()
    return turns


def limit_of(turn: int) -> int:
    return EDITED[turn % len(EDITED)]


def rested(servers: Stage, crowd: Crowd) -> Turn:
    held = slots(servers, crowd.rest())
    time.sleep(2 * WINDOW)
    (server,) = servers.servers()
    with server.client() as client:
        for key in client.scan_iter("other:*", count=1000):
            client.delete(key)
        wait_until(lambda: steady(client), timeout=90, every=0.5)  # the marks of late charges live for a minute
        keys = sum(":late." not in key for key in client.scan_iter("dt:*", count=1000))
        used = int(client.info("memory")["used_memory"]) // 1024
    lost = sum(abs(counted - truly) for counted, truly in held.values())
    found = {"slots": lost, "keys": keys, "immortal": len(immortal_keys(server)), "server kB": used}
    return Turn(found, crowd.grown())


def steady(client: Any) -> bool:
    before = client.dbsize()
    time.sleep(1.0)
    return bool(client.dbsize() == before)


def verdict(turns: list[Turn]) -> int:
    before, after = turns[WARM - 1], turns[-1]
    rows = [(name, before.server[name], after.server[name], ALLOWED[name]) for name in after.server]
    for place in range(PROCESSES - 1):
        was, now = before.processes[place], after.processes[place]
        allowed = {**ALLOWED, "lines": LINES * (len(turns) - WARM)}
        rows += [
            (f"process {place}, {name}", was[name], now[name], allowed[name])
            for name in ("memory", "threads", "files", "lines")
        ]
    for name, was, now, more in rows:
        print(f"{name:<20} {was:>8} {now:>8} +{more:<8} {'grew' if now > was + more else 'holds'}")
    stale = [
        number
        for number, turn in enumerate(turns)
        if any(process["rule"] != rate_of(limit_of(number)) for process in turn.processes)
    ]
    if stale:
        print(f"{len(stale)} turns ended with a process that had not heard of the last edit")
    return int(bool(stale) or any(now > was + more for _, was, now, more in rows))


if __name__ == "__main__":
    sys.exit(main())
