"""``make bench-commits AGAINST=<commit>``: this tree beside a commit, in turns, on one Redis, all pinned to one core.

Each subject has a process of each tree, which plays its own tree's subject of that name; the ratio is the median of
the rounds' ratios, so whatever disturbs the machine disturbs both. 1.00 is "as fast as before".
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
CORE = 0


class Subject(NamedTuple):
    """What is compared: ``make(url, *arguments)`` of the benchmarks' ``<module>.py`` in either tree."""

    name: str
    module: str
    make: str
    argument: str
    calls: int = 400


SUBJECTS = (
    Subject("1 rule", "ours", "ours", "1"),
    Subject("5 mixed rules", "ours", "ours", "5"),
    Subject("REST framework view, 1 rule", "views", "view", "ours"),
    Subject("middleware, sync, 1 rule", "views", "through_middleware", "ours"),
    Subject("middleware, async, 1 rule", "views", "through_middleware_async", "ours"),
    Subject("50 in flight on one loop, 1 rule", "ours", "ours_async", "1", 2000),
    Subject("50 in flight on one loop, 5 mixed rules", "ours", "ours_async", "5", 2000),
    Subject("in memory, 1 rule", "ours", "in_memory", ""),
    Subject("connect and disconnect, without the mixin", "sockets", "handshakes", "plain"),
    Subject("connect and disconnect, a cap", "sockets", "handshakes", "cap"),
    Subject("connect and disconnect, a cap and a rate", "sockets", "handshakes", "door"),
    Subject("a message, a rule of the socket's own", "sockets", "messages", "own", 2000),
    Subject("a message, a rule shared in Redis", "sockets", "messages", "shared", 2000),
)


class Player:
    """One subject in a process of one tree."""

    def __init__(self, tree: Path, subject: Subject, url: str) -> None:
        self.calls = subject.calls
        package = "tests.lab.benchmarks" if (tree / "tests" / "lab").exists() else "tests.benchmarks"
        environment = os.environ | {
            "PYTHONPATH": str(tree),
            "REDIS_URL": url,
            "DJANGO_SETTINGS_MODULE": f"{package}.settings",
        }
        module = f"{package}.{subject.module}"
        command = [sys.executable, "-P", __file__, "--play", module, subject.make, subject.argument, url]
        self._process = subprocess.Popen(
            command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.round()  # it is ready, and warm

    def round(self) -> float:
        """Microseconds a call."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{self.calls}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        with self._process:  # which closes its pipes
            self._process.kill()


def compare(old: Path, url: str, rounds: int, only: str) -> None:
    """Print each subject's time in both trees, and their ratio."""
    print(f"{'':<44} {'before':>9} {'now':>9} {'ratio':>6} {'quiet':>6}   (µs; all on one core)")
    for subject in SUBJECTS:
        if only not in subject.name:
            continue
        with ExitStack() as stack:
            players = [Player(tree, subject, url) for tree in (old, ROOT)]
            for player in players:
                stack.callback(player.close)
            pairs = []
            for number in range(rounds):
                order = players if number % 2 else players[::-1]
                took = {player: player.round() for player in order}
                pairs.append([took[player] for player in players])
        before, now = (median(pair[which] for pair in pairs) for which in (0, 1))
        quiet = min(pair[1] for pair in pairs) / min(pair[0] for pair in pairs)
        ratio = median(mine / theirs for theirs, mine in pairs)
        print(f"{subject.name:<44} {before:>9.1f} {now:>9.1f} {ratio:>6.3f} {quiet:>6.3f}", flush=True)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A work tree of the commit, for a while."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "worktree", "add", "-q", "--detach", f"{folder}/tree", commit], cwd=ROOT, check=True)
        try:
            yield Path(folder, "tree")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", f"{folder}/tree"], cwd=ROOT, check=True)


def play(module: str, make: str, argument: str, url: str) -> None:
    """Play rounds of as many calls as each line of standard input says."""
    import django

    django.setup()
    given: list[Any] = [int(argument) if argument.isdigit() else argument] if argument else []
    subject: Callable[[int], object] = getattr(import_module(module), make)(url, *given)
    for line in sys.stdin:
        calls = int(line)
        subject(calls // 10)
        start = time.perf_counter()
        subject(calls)
        print((time.perf_counter() - start) / calls * 1e6, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-commits", description=__doc__)
    parser.add_argument("commit", help="what to compare with")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--only", default="", help="subjects whose name holds this text")
    chosen = parser.parse_args()
    os.sched_setaffinity(0, {CORE})  # what is started from here keeps to it
    from tests.servers import RedisServer

    with checked_out(chosen.commit) as old, RedisServer() as server:
        compare(old, server.url, chosen.rounds, chosen.only)


if __name__ == "__main__":
    play(*sys.argv[2:]) if sys.argv[1:2] == ["--play"] else main()
