"""``make bench-commits AGAINST=<commit>``: this tree beside a commit, in turns, on one Redis, all pinned to one core.

The ratio is the median of the rounds' ratios, so whatever disturbs the machine disturbs both.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[3]
CORE = 0


# By name: the function of a module of the benchmarks, in either tree, its arguments, and the calls of a round.
SUBJECTS = {
    "1 rule": ("ours.ours", 1, 400),
    "5 mixed rules": ("ours.ours", 5, 400),
    "REST framework view, 1 rule": ("views.view", "ours", 400),
    "REST framework view, 5 mixed rules": ("views.view", ["ours", 5], 400),
    "REST framework view, unthrottled": ("views.view", "none", 400),
    "REST framework view, a PING": ("views.view", "ping", 400),
    "middleware, sync, 1 rule": ("views.through_middleware", "ours", 400),
    "middleware, sync, none": ("views.through_middleware", "none", 400),
    "middleware, sync, a PING": ("views.through_middleware", "ping", 400),
    "middleware, async, 1 rule": ("views.through_middleware_async", "ours", 400),
    "middleware, async, none": ("views.through_middleware_async", "none", 400),
    "middleware, async, a PING": ("views.through_middleware_async", "ping", 400),
    "50 in flight on one loop, 1 rule": ("ours.ours_async", 1, 2000),
    "50 in flight on one loop, 5 mixed rules": ("ours.ours_async", 5, 2000),
    "in memory, 1 rule": ("ours.in_memory", None, 400),
    "connect and disconnect, without the mixin": ("sockets.handshakes", "plain", 400),
    "connect and disconnect, a cap": ("sockets.handshakes", "cap", 400),
    "connect and disconnect, a cap and a rate": ("sockets.handshakes", "door", 400),
    "a message, a rule of the socket's own": ("sockets.messages", "own", 2000),
    "a message, a rule shared in Redis": ("sockets.messages", "shared", 2000),
}


@contextmanager
def player(tree: Path, subject: str, url: str) -> Iterator[Callable[[], float]]:
    """A process of one tree; the function has it play a round, and returns microseconds a call."""
    make, argument, calls = SUBJECTS[subject]
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "REDIS_URL": url,
        "DJANGO_SETTINGS_MODULE": "tests.lab.benchmarks.settings",
    }
    command = [sys.executable, "-P", __file__, "--play", make, json.dumps(argument), url]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(command, cwd=tree, env=environment, **pipes) as process:

        def play() -> float:
            process.stdin.write(f"{calls}\n")  # type: ignore[union-attr]
            return float(process.stdout.readline())  # type: ignore[union-attr]

        play()  # it is ready, and warm
        yield play
        process.kill()


def compare(old: Path, url: str, rounds: int, only: str) -> None:
    print(f"{'':<44} {'before':>9} {'now':>9} {'ratio':>6} {'quiet':>6}   (µs; all on one core)")
    for subject in filter(lambda name: only in name, SUBJECTS):
        with player(old, subject, url) as theirs, player(ROOT, subject, url) as mine:
            pairs = []
            for number in range(rounds):
                played = {play: play() for play in ((theirs, mine) if number % 2 else (mine, theirs))}
                pairs.append((played[theirs], played[mine]))
        before, now = zip(*pairs, strict=True)
        ratio = median(after / earlier for earlier, after in pairs)
        figures = f"{median(before):>9.1f} {median(now):>9.1f} {ratio:>6.3f} {min(now) / min(before):>6.3f}"
        print(f"{subject:<44} {figures}", flush=True)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "worktree", "add", "-q", "--detach", f"{folder}/tree", commit], cwd=ROOT, check=True)
        try:
            yield Path(folder, "tree")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", f"{folder}/tree"], cwd=ROOT, check=True)


def play(make: str, argument: str, url: str) -> None:
    """Play rounds of as many calls as each line of standard input says."""
    import django

    django.setup()
    module, _, name = make.partition(".")
    value = json.loads(argument)
    arguments = value if isinstance(value, list) else [] if value is None else [value]
    subject: Callable[[int], object] = getattr(import_module(f"tests.lab.benchmarks.{module}"), name)(url, *arguments)
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
