"""A process that asks for one ident all the time; prints when each call passed, and whether by this process alone."""

from __future__ import annotations

import json
import sys
import time

from django.conf import settings

URL, PROCESSES, OPTIONS, SECONDS = json.loads(sys.argv[1])

settings.configure(SECRET_KEY="a key", DJANGO_THROTTLE={"BEAT_INTERVAL": 0.3, "PROCESS_TTL": 3.0})

from django_throttle import agent  # noqa: E402 - the settings come first
from django_throttle.core import Rule  # noqa: E402
from django_throttle.limiter import Limiter  # noqa: E402
from django_throttle.stores import RedisStore  # noqa: E402

limiter = Limiter([Rule("api", **OPTIONS)], RedisStore(URL, processes=PROCESSES))


print("ready", flush=True)
sys.stdin.readline()
admitted: list[tuple[float, bool]] = []
until = time.monotonic() + SECONDS
while time.monotonic() < until:
    decision = limiter.acquire("user:1")
    if decision.allowed:
        admitted.append((time.time(), decision.degraded))
    time.sleep(0.002)
for at, degraded in admitted:
    print(f"{at:.6f} {int(degraded)}")
agent.stop()
