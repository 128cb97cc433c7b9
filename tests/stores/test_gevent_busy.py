"""Under gevent a loop that other greenlets hold up is not taken for a Redis that does not answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.servers import need_package, slack

PROGRAM = """
from gevent import monkey; monkey.patch_all()
import sys, time, gevent
from django.conf import settings
settings.configure(SECRET_KEY="secret", DJANGO_THROTTLE={"AGENT": False})
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore

limiter = Limiter([Rule("api", "100000/h")], RedisStore(sys.argv[1]))
calls = [gevent.spawn(limiter.acquire, f"user:{number}") for number in range(20)]  # each connects

def hold_up():
    while not all(call.ready() for call in calls):
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        gevent.sleep(0)

gevent.spawn(hold_up)
gevent.joinall(calls)
assert any(call.value.degraded for call in calls)
"""


def test_the_log_says_that_the_loop_was_busy(redis_url: str, servers: None) -> None:
    need_package("gevent")
    command = [sys.executable, "-c", PROGRAM, redis_url]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=slack(60), check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    assert "blocks the event loop for longer than DEADLINE" in done.stderr
    assert "Redis does not answer" not in done.stderr
