"""``make campaign``: rounds of faults until the time is over, and a table; ends with 1 where something did not hold."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Sequence

from testproject.services import stop_on_signals
from tests.bounds import most
from tests.lab.campaign.checks import DAMPED, by_process, check, fullest, settled
from tests.lab.campaign.database import kept
from tests.lab.campaign.history import History
from tests.lab.campaign.limits import LIMITS
from tests.lab.campaign.plan import ALL_ROUNDS, CLIENTS, FAULTS, SERVERS, Round
from tests.lab.campaign.rounds import play

ROUND_SECONDS = 30.0  # about what a round takes
ALL_SERVERS = 2.0  # minutes, from which on a run has played each of them
HEAD = ("Round", "Server", "Faults", "Operations", "ok", "refused", "unknown", "Worst", "Verdict")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--round", type=int, default=None, help="only this round of the seed")
    given = parser.parse_args()
    stop_on_signals()
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    print(f"campaign: seed {seed}, {given.minutes:g} minutes", flush=True)
    lines, failed, until, rounds = [HEAD], 0, time.monotonic() + 60 * given.minutes, list[Round]()
    least = 1 if given.round is not None or given.minutes < ALL_SERVERS else len(SERVERS)
    while len(rounds) < least or (given.round is None and time.monotonic() + ROUND_SECONDS < until):
        rounds.append(Round(seed, (given.round or 0) + len(rounds)))
        line, breaches = run(rounds[-1])
        lines.append(line)
        failed += breaches
    show(lines)
    if lacking := unplayed(rounds) if len(rounds) >= ALL_ROUNDS else ():
        print(f"not played: {', '.join(lacking)}", flush=True)
        failed += len(lacking)
    if failed:
        print(f"{failed} of what must hold did not. The same faults again: make campaign SEED={seed}", flush=True)
    return 1 if failed else 0


def unplayed(rounds: Sequence[Round]) -> list[str]:
    """What these rounds do not play: faults of each kind of server, and of clients."""
    wanted = {f"{server}: {kind[0]}" for server, kinds in FAULTS.items() for kind in kinds}
    wanted |= {f"clients: {kind[0]}" for kind in CLIENTS}
    for this in rounds:
        for lane, steps in zip((this.server, "clients"), this.faults(), strict=True):
            wanted -= {f"{lane}: {step.name}" for step in steps}
    return sorted(wanted)


def run(this: Round) -> tuple[tuple[str, ...], int]:
    """Play a round; its line of the table, and how much did not hold."""
    of_servers, of_clients = this.faults()
    print(
        f"round {this.number}, {this.server}, {kept(this.database)}: " + "; ".join(map(str, of_servers + of_clients)),
        flush=True,
    )
    began = time.monotonic()
    history = play(this)
    breaches = check(history, LIMITS)
    for breach in breaches:
        print(f"  seed {this.seed}, round {this.number}: {breach}", flush=True)
    if breaches:
        print("\n".join(f"    {line}" for line in (*map(str, history.faults), *history.log)), flush=True)
    line = row(this, history, len(breaches))
    print(f"  {time.monotonic() - began:.0f} s: {', '.join(line[3:])}", flush=True)
    print(f"  fullest windows: {nearest(history)}", flush=True)
    return line, len(breaches)


def nearest(history: History) -> str:
    """How near each limit came to its bound; of what processes have each for themselves, the one that came nearest."""
    found = []
    for name, limit in LIMITS.items():
        owns = list(by_process(history, limit))
        if limit.kind in ("rate", "door", "prepaid"):
            served = [one for own in owns for one in own if not one.alone]
            found.append(f"{name} {fullest(history, limit, served)} of {most(limit.rule)}")
        if limit.kind == "rate" and limit.rule.on_store_failure == "local":
            alone = max((fullest(history, limit, [one for one in own if one.alone]) for own in owns), default=0)
            found[-1] += f" and {alone} of {most(limit.rule.share(history.processes))} alone"
        if limit.kind == "damper":
            found.append(f"{name} settled {fullest(history, limit, settled(history, limit), DAMPED)}")
    return ", ".join(found)


def row(this: Round, history: History, breaches: int) -> tuple[str, ...]:
    counts = {
        outcome: sum(one.outcome == outcome for one in history.operations) for outcome in ("ok", "refused", "unknown")
    }
    worst = max((max(one.took, one.freed) for one in history.operations), default=0.0)
    return (
        str(this.number),
        history.server,
        str(len(history.faults)),
        str(len(history.operations)),
        *map(str, counts.values()),
        f"{worst * 1000:.0f} ms",
        f"{breaches} broken" if breaches else "holds",
    )


def show(lines: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print()
    for line in lines:
        print("  ".join(map(str.ljust, line, widths)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
