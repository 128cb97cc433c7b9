"""A process that asks for one ident all the time, one call after the other, or ten at a time and nice to others.

It prints when each call passed and whether it decided that alone, the longest call, and how many Redis did not decide.
"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import django
from django.conf import settings

URL, OPTIONS, SECONDS, CORE = json.loads(sys.argv[1])
AT_ONCE, NICE = 10, 10

settings.configure(SECRET_KEY="a key", DJANGO_THROTTLE={"PROCESS_TTL": 3.0})
django.setup()

from django_throttle import agent  # noqa: E402 - the settings come first
from django_throttle.core import Decision, Rule  # noqa: E402
from django_throttle.limiter import Limiter  # noqa: E402
from django_throttle.stores import RedisStore  # noqa: E402

limiter = Limiter([Rule("api", **OPTIONS)], RedisStore(URL))


admitted: list[tuple[float, bool]] = []
calls: list[tuple[float, bool]] = []  # how long each took, and whether the process decided alone
refused = 0  # by Redis


def note(began: float, decision: Decision) -> None:
    global refused
    calls.append((time.monotonic() - began, decision.degraded))
    refused += not decision.allowed and not decision.degraded
    if decision.allowed:
        admitted.append((time.time(), decision.degraded))


def goes_on() -> bool:
    """For so long; and who is starved, until Redis has no more to give."""
    now = time.monotonic()
    return now < until or (CORE is not None and not refused and now < until + 60)


def ask() -> None:
    while goes_on():
        note(time.monotonic(), limiter.acquire("user:1"))
        time.sleep(0.002)


print("ready", flush=True)
sys.stdin.readline()
if CORE is not None:
    os.sched_setaffinity(0, {CORE})
    os.nice(NICE)
until = time.monotonic() + SECONDS
with ThreadPoolExecutor(1 if CORE is None else AT_ONCE) as threads:
    for _ in range(1 if CORE is None else AT_ONCE):
        threads.submit(ask)
print(json.dumps([admitted, max(took for took, _ in calls), sum(alone for _, alone in calls)]))
agent.stop()
