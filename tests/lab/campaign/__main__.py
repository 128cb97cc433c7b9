"""``make campaign``: rounds of faults until the time is over; ends with 1 where something did not hold."""

import argparse
import secrets
import sys
import time
from collections import Counter

from testproject.services import stop_on_signals
from tests.lab.campaign.checks import check
from tests.lab.campaign.limits import LIMITS
from tests.lab.campaign.plan import SERVERS, Round
from tests.lab.campaign.rounds import play
from tests.lab.campaign.stage import kept

ROUND_SECONDS = 30.0  # about what a round takes
ALL_SERVERS = 2.0  # minutes, from which on a run has played each of them


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--round", type=int, default=None, help="only this round of the seed")
    given = parser.parse_args()
    stop_on_signals()
    print(f"campaign: seed {given.seed}, {given.minutes:g} minutes", flush=True)
    failed, number, until = 0, given.round or 0, time.monotonic() + 60 * given.minutes
    least = 1 if given.round is not None or given.minutes < ALL_SERVERS else len(SERVERS)
    while least > 0 or (given.round is None and time.monotonic() + ROUND_SECONDS < until):
        failed += run(Round(given.seed, number))
        number, least = number + 1, least - 1
    if failed:
        print(f"{failed} of what must hold did not. The same faults again: make campaign SEED={given.seed}", flush=True)
    return 1 if failed else 0


def run(this: Round) -> int:
    """Play a round and print what came of it; returns how much did not hold."""
    faults = "; ".join(str(step) for lane in this.faults() for step in lane)
    print(f"round {this.number}, {this.server}, {kept(this.database)}: {faults}", flush=True)
    began = time.monotonic()
    history = play(this)
    breaches = check(history, LIMITS)
    for breach in breaches:
        print(f"  seed {this.seed}, round {this.number}: {breach}", flush=True)
    if breaches:
        print("\n".join(f"    {line}" for line in (*map(str, history.faults), *history.log)), flush=True)
    counts = Counter(operation.outcome for operation in history.operations)
    worst = max((max(operation.took, operation.freed) for operation in history.operations), default=0.0)
    print(
        f"  {time.monotonic() - began:.0f} s, {history.server}: {len(history.operations)} operations, "
        f"{counts['ok']} ok, {counts['refused']} refused, {counts['unknown']} unknown, worst {worst * 1000:.0f} ms; "
        f"{f'{len(breaches)} broken' if breaches else 'holds'}",
        flush=True,
    )
    return len(breaches)


if __name__ == "__main__":
    sys.exit(main())
