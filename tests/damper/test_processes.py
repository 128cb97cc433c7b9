"""Real processes and one real Redis: each reports what its dampers have counted before it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from django_throttle.core import Rule
from django_throttle.stores import RedisStore
from tests.servers import slack, wait_until

ROOT = Path(__file__).parents[2]
DAMPER = Rule("account", "1000/s", algorithm="damper")
PROGRAM = """
import os
import django
from django.conf import settings
settings.configure(DJANGO_THROTTLE={{"DATABASE_RULES": False}}, SECRET_KEY="x")
django.setup()
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
limiter = Limiter([Rule("account", "1000/s", algorithm="damper")], RedisStore({url!r}, deadline=5.0))
for _ in range(10):
    limiter.acquire("user:1")
{then}
"""
FORK = """
child = os.fork()
for _ in range(100 if child else 1000):
    limiter.acquire("user:1")
if child:
    os.waitpid(child, 0)
"""


def counted(url: str, rule: Rule = DAMPER, ident: str = "user:1", secret: str = "") -> int:
    store = RedisStore(url, deadline=5.0, secret=secret)
    client = store.transport.client
    sums = [client.hget(key, "=") or b"0" for key in client.scan_iter(f"{store.key(rule.id, ident)}:*")]
    client.connection_pool.disconnect()
    return sum(int(text.split(b":")[0]) for text in sums)


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(("then", "expected"), [("", 10), (FORK, 1110)], ids=["alone", "forked"])
def test_a_process_tells_what_it_counted_before_it_ends(redis_url: str, then: str, expected: int) -> None:
    program = [sys.executable, "-c", PROGRAM.format(url=redis_url, then=then)]
    subprocess.run(program, cwd=ROOT, check=True, timeout=slack(60))
    wait_until(lambda: counted(redis_url) == expected)
