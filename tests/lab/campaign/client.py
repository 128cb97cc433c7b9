"""A client process: threads, and tasks of one event loop, that call and write down what they are told.

Started as ``python -m tests.lab.campaign.client '{"url": …}'``. It says "ready"; of the lines that it is sent, "go"
starts its lanes, "rest" ends them and is answered with the slots that it holds, "measure" with what has grown, "edit"
writes the rule of the door, "end" gives everything back. One that starts with a limit makes the tables and the rule.
"""

import asyncio
import gc
import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from testproject.check.standstill import elapsed, watch
from tests.lab.campaign.history import BEGUN, ENDED, FREED, ODD, QUEUED, RELEASED, Recorder
from tests.lab.campaign.limits import LIMITS, configure, rate_of
from tests.lab.campaign.plan import TASKS, THREADS, PlannedCall, Round

GIVEN: dict[str, Any] = json.loads(sys.argv[1])
configure(GIVEN)

from django.core.management import call_command  # noqa: E402 - the settings come first
from django.db import InterfaceError, OperationalError, connection  # noqa: E402

from django_throttle import agent, rulebook  # noqa: E402
from django_throttle.core import Decision, Lease, Rule  # noqa: E402
from django_throttle.exceptions import Cause  # noqa: E402
from django_throttle.identity import AsgiCaller  # noqa: E402
from django_throttle.identity.call import Call  # noqa: E402
from django_throttle.limiter import Limiter, adecide, decide  # noqa: E402
from django_throttle.models import ThrottleRule  # noqa: E402
from django_throttle.stores import get_store  # noqa: E402

NUMBERS = count()
SAMPLE_SECONDS = 0.02
REST_SECONDS = 20.0  # until all calls have ended that were under way
LINES = Path(GIVEN["folder"]) / f"lines-{GIVEN['process']}.txt"


def queued() -> float:
    """Seconds that threads of this process have waited for a processor; 0.0 where the system does not say."""
    total = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # it has ended
            total += int(thread.read_text().split()[1])
    return total / 1_000_000_000


class Client:
    def __init__(self) -> None:
        written = Path(GIVEN["folder"]) / f"client-{GIVEN['process']}.log"
        self.recorder = Recorder(written if GIVEN["records"] else Path(os.devnull))
        self.round = Round(GIVEN["seed"], GIVEN["round"])
        self.limiters = {name: Limiter([limit.rule], get_store()) for name, limit in LIMITS.items()}
        self.resting = threading.Event()
        self.lanes = [Lane(self, number) for number in range(THREADS + TASKS)]

    def work(self) -> None:
        with ThreadPoolExecutor(THREADS + 1) as threads:
            runs = [threads.submit(lane.run) for lane in self.lanes[:THREADS]]
            runs.append(threads.submit(asyncio.run, self._tasks()))
        for run in runs:
            run.result()

    def sample(self) -> None:
        """Note all the time how long it had no processor, so that nobody is blamed for the machine."""
        while True:
            time.sleep(SAMPLE_SECONDS)
            self.recorder.write(QUEUED, time.monotonic(), queued())

    async def _tasks(self) -> None:
        await asyncio.gather(*(lane.play() for lane in self.lanes[THREADS:]))

    def held(self) -> Counter[str]:
        return Counter(name for lane in self.lanes for _, name, _, _ in lane.held)


def grown() -> dict[str, Any]:
    """What may grow in this process: kB of memory, threads, open files, lines in its log; and the rule in force."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    door = rulebook.current().by_name("door")
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE") // 1024, "threads": threading.active_count(),
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()), "lines": LINES.read_text().count("\n"),
        "rule": str(door.rate if door else None),
    }  # fmt: skip


def edit(limit: int) -> None:
    rule = Rule.from_options("door", {**LIMITS["door"].rule.as_options(), "rate": rate_of(limit)})
    row = ThrottleRule.from_rule(rule)
    columns = {name: getattr(row, name) for name in ThrottleRule.columns() - {"id", "updated_at"}}
    while True:
        try:
            ThrottleRule.objects.update_or_create(name="door", defaults=columns)
        except (InterfaceError, OperationalError):  # locked; or lost, and what is open is another one
            connection.close()
            time.sleep(0.1)
        else:
            return


class Lane:
    """A thread or a task: what it holds is (operation, limit, lease, until which call)."""

    def __init__(self, client: Client, number: int) -> None:
        self.client, self.write = client, client.recorder.write
        self.is_task = number >= THREADS
        self.calls = client.round.calls(GIVEN["process"], number)
        self.held: list[tuple[int, str, Lease, int]] = []
        self.done = 0

    def run(self) -> None:
        with suppress(StopIteration):
            self.play().send(None)

    async def play(self) -> None:
        for call in self.calls:
            if self.is_task:
                await asyncio.sleep(call.pause)
            resting = self.client.resting
            if resting.is_set() if self.is_task else resting.wait(call.pause):
                return
            self.done += 1
            due = [each for each in self.held if each[3] <= self.done]
            self.held = [each for each in self.held if each[3] > self.done]
            for number, name, lease, _ in due:
                await self._release(number, name, lease)
            await self._call(call)

    def end(self) -> None:
        self.is_task = False
        for number, name, lease, _ in self.held:
            with suppress(StopIteration):
                self._release(number, name, lease).send(None)
        self.held = []

    async def _call(self, call: PlannedCall) -> None:
        number, began = next(NUMBERS), time.monotonic()
        self.write(BEGUN, number, call.limit, call.cost, began)
        try:
            decision = await self._decide(call)
        except Exception as error:  # noqa: BLE001 - none is expected
            return self._odd(call, error)
        now, took = time.monotonic(), elapsed(began)
        answer = (decision.allowed, decision.degraded, decision.delay, max(0.0, took), decision.limit)
        self.write(ENDED, number, now, *answer, decision.cause != Cause.BREAKER)
        if decision.lease is not None:
            self.held.append((number, call.limit, decision.lease, self.done + call.holds))

    async def _decide(self, call: PlannedCall) -> Decision:
        limit, limiter = LIMITS[call.limit], self.client.limiters[call.limit]
        if limit.kind == "door":  # which goes by the rules in force, of settings and database
            planned = Call(call.limit, ("request",), AsgiCaller({}), call.cost)
            return await adecide(planned) if self.is_task else decide(planned)
        ident = limit.of(call.who)
        return await limiter.aacquire(ident, call.cost) if self.is_task else limiter.acquire(ident, call.cost)

    async def _release(self, number: int, name: str, lease: Lease) -> None:
        limiter, began = self.client.limiters[name], time.monotonic()
        self.write(RELEASED, number, began)
        try:
            await limiter.arelease(lease) if self.is_task else limiter.release(lease)
        except Exception as error:  # noqa: BLE001 - none is expected
            self._odd(name, error)
        self.write(FREED, number, elapsed(began))

    def _odd(self, what: object, error: Exception) -> None:
        self.write(ODD, f"{what}: {type(error).__name__}: {error}")


def main() -> None:
    logging.basicConfig(filename=str(LINES), level=logging.INFO)
    watch.start()
    client = Client()
    if "limit" in GIVEN:
        call_command("migrate", verbosity=0)
        edit(GIVEN["limit"])
    agent.ensure(get_store(), rules="limit" in GIVEN)  # tells what could not be told while Redis was away
    threading.Thread(target=client.sample, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["go"]:
                client.resting.clear()
                worker = threading.Thread(target=client.work)
                worker.start()
            case ["rest"]:
                client.resting.set()
                worker.join(REST_SECONDS)
                if worker.is_alive():
                    client.recorder.write(ODD, f"calls that have not ended {REST_SECONDS:g} s after the last one began")
                agent.ensure(get_store(), rules=True)  # it may have had no call of the door yet
                print(json.dumps(client.held()), flush=True)
            case ["edit", limit]:
                edit(int(limit))
                print("written", flush=True)
            case ["measure"]:
                print(json.dumps(grown()), flush=True)
            case ["end"]:
                for lane in client.lanes:
                    lane.end()
                print("ended", flush=True)
    client.resting.set()  # also where nobody is there any more to say so
    agent.stop()


if __name__ == "__main__":
    main()
