"""Defer calls, have a real worker run them, and say whether they ran in order, once, not early and at the rate.

With ``--kill`` the worker is killed, and another takes over. What a killed worker of Celery had fetched comes back
together, after ``visibility_timeout``: late, and perhaps twice. The exit status is 1 if something is wrong.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.servers import RedisServer, slack, wait_until

ROOT = Path(__file__).parents[3]
WORKERS = {
    "django": "-m django db_worker --interval 0.005 --no-startup-delay --no-reload",
    "celery": "-m celery -A tests.lab.deferring.site worker -P solo -l warning --without-mingle",
}
AWAY = 1.0  # seconds for which no worker runs


class Run:
    def __init__(self, folder: Path, redis: str, given: argparse.Namespace) -> None:
        self.folder, self.given = folder, given
        self.ran = folder / "ran"
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "tests.lab.deferring.settings", "DATABASE": str(folder / "db.sqlite3"),
            "REDIS_URL": redis, "RATE": f"{given.rate}/s", "RAN": str(self.ran), "VISIBILITY": str(given.visibility),
        }  # fmt: skip
        self.starts: dict[int, float] = {}
        self.rescued = 0

    def play(self) -> dict[str, Any]:
        import django
        from django.core.management import call_command

        django.setup()
        # What the worker was running when it was killed: django-tasks-db leaves it to the site (howto/later.rst).
        from django_tasks_db.models import DBTaskResult

        call_command("migrate", verbosity=0)
        worker = self.worker()
        try:
            self.call()
            if self.given.kill:
                self.wait(lambda: len(self.lines()) > self.given.calls / 3)
                worker.send_signal(signal.SIGKILL)
                worker.wait()
                time.sleep(AWAY)
                self.rescued = DBTaskResult.objects.filter(status="RUNNING").update(status="READY")
                worker = self.worker()
            self.wait(lambda: self.starts.keys() <= {number for number, _ in self.lines()})
        finally:
            worker.terminate()
            worker.wait()
        return self.figures()

    def worker(self) -> subprocess.Popen[bytes]:
        log = (self.folder / "worker.log").open("ab")
        started = subprocess.Popen(
            [sys.executable, *WORKERS[self.given.queue].split()], cwd=ROOT, stdout=log, stderr=log
        )
        if not self.starts:
            self.warm_up(started)
        return started

    def warm_up(self, worker: subprocess.Popen[bytes]) -> None:
        from tests.lab.deferring import site

        site.celery_work.delay("-1") if self.given.queue == "celery" else site.work.enqueue("-1")
        wait_until(lambda: self.lines() or worker.poll() is not None, timeout=60, every=0.05)
        assert worker.poll() is None, (self.folder / "worker.log").read_text()

    def call(self) -> None:
        """Until so many are deferred: the first ones are slow, and may be done at once."""
        from django.test import Client

        client, number = Client(), 0
        while len(self.starts) < self.given.calls:
            answer = client.get(f"/{self.given.queue}", {"number": number})
            if answer.status_code == 202:
                self.starts[number] = datetime.fromisoformat(answer.json()["starts_at"]).timestamp()
            else:
                assert answer.status_code == 200, answer.status_code
            number += 1

    def wait(self, happened: Callable[[], bool]) -> None:
        left = self.given.calls / self.given.rate + (2 * self.given.visibility if self.given.kill else 0) + 60
        wait_until(happened, timeout=min(left, 600), every=0.05)

    def lines(self) -> list[tuple[int, float]]:
        if not self.ran.exists():
            return []
        pairs = [line.split() for line in self.ran.read_text().splitlines()]
        return [(int(number), float(at)) for number, at in pairs]

    def figures(self) -> dict[str, Any]:
        """Of the deferred calls; times in seconds, lateness in milliseconds."""
        found = [(number, at) for number, at in self.lines() if number in self.starts]
        numbers, times = [number for number, _ in found], [at for _, at in found]
        late = sorted(1000 * (at - self.starts[number]) for number, at in found)
        return {
            "queue": self.given.queue, "killed": self.given.kill, "calls": self.given.calls,
            "lost": self.given.calls - len(set(numbers)), "twice": len(numbers) - len(set(numbers)),
            "out of order": sum(one > other for one, other in pairwise(numbers)),
            "early": sum(one < 0 for one in late), "rate": round((len(times) - 1) / (max(times) - min(times)), 3),
            "late ms, median": round(late[len(late) // 2], 1), "late ms, most": round(late[-1], 1),
            "cut off and run again": self.rescued,
        }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.deferring")
    parser.add_argument("--queue", choices=WORKERS, default="django")
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--rate", type=int, default=20)
    parser.add_argument("--kill", action="store_true", help="kill the worker midway")
    given = parser.parse_args(arguments)
    # Celery's broker hands out again what a worker keeps for longer, so longer than any call waits.
    given.visibility = given.calls / given.rate + 5 if given.kill else 3600.0
    with RedisServer() as redis, tempfile.TemporaryDirectory() as folder:
        figures = Run(Path(folder), redis.url, given).play()
        if log := (Path(folder) / "worker.log").read_text()[-2000:]:
            print(log, file=sys.stderr)
    print(json.dumps(figures))
    bad = figures["lost"] or figures["early"]
    if not (given.kill and given.queue == "celery"):
        tolerance = slack(0.02 if given.calls >= 1000 else 0.1)  # a short run ends with the delay of one task
        bad = bad or figures["out of order"] or figures["twice"] > figures["cut off and run again"]
        bad = bad or abs(figures["rate"] / given.rate - 1) > tolerance
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
