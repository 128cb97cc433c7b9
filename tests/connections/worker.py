"""A process that holds connections, told what to do over a pipe: one JSON command a line, one JSON answer.

Started as ``python -m tests.connections.worker '{"REDIS": …}'``, the argument being DJANGO_THROTTLE.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import django
from django.conf import settings

SECRET = "the same in all tests of connections"

if not settings.configured:
    settings.configure(
        SECRET_KEY=SECRET,
        INSTALLED_APPS=["django_throttle"],
        DJANGO_THROTTLE=json.loads(sys.argv[1]),
        LOGGING_CONFIG=None,
    )
    django.setup()

from django_throttle import agent  # noqa: E402
from django_throttle.core import Lease, Rule  # noqa: E402
from django_throttle.limiter import Limiter  # noqa: E402
from django_throttle.stores import RedisStore, get_store  # noqa: E402

RULE = Rule("sockets", limit=1000, algorithm="concurrency", events=("connection",))


class Holder:
    """What the pipe can ask for."""

    def __init__(self) -> None:
        self.store = get_store()
        self.leases: list[Lease] = []

    def acquire(self, ident: str, times: int = 1) -> int:
        agent.ensure(self.store)
        limiter = Limiter([RULE], self.store)
        taken = [decision.lease for _ in range(times) if (decision := limiter.acquire(ident)).lease]
        self.leases += taken
        return len(taken)

    def acquire_each(self, kind: str, times: int) -> int:
        """One connection each for so many users."""
        agent.ensure(self.store)
        limiter = Limiter([RULE], self.store)
        taken = [lease for number in range(times) if (lease := limiter.acquire(f"{kind}:{number}").lease)]
        self.leases += taken
        return len(taken)

    def release(self, times: int) -> int:
        limiter = Limiter([RULE], self.store)
        for _ in range(times):
            limiter.release(self.leases.pop())
        return len(self.leases)

    def uid(self) -> str:
        return self.store.leases.uid

    def fork(self, ident: str) -> list[Any]:
        """Fork a child that takes one connection and ends; returns [leases it inherited, its uid, its beat]."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            inherited = len(self.store.leases)
            self.acquire(ident)
            assert isinstance(self.store, RedisStore)
            os.write(writing, json.dumps([inherited, self.uid(), len(self.store.leases)]).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            answer: list[Any] = json.load(pipe)
        os.waitpid(child, 0)
        return answer


def main() -> None:
    holder = Holder()
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        print(json.dumps(getattr(holder, verb)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
