"""A process that holds connections, told what to do over a pipe: one JSON command a line, one JSON answer.

Started as ``python -m tests.connections.worker '{"REDIS": …}'``, the argument being DJANGO_THROTTLE.
"""

import json
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
from django_throttle.core import Rule  # noqa: E402
from django_throttle.limiter import Limiter  # noqa: E402
from django_throttle.stores import get_store  # noqa: E402

RULE = Rule("sockets", limit=1000, algorithm="concurrency", events=("connection",))


class Holder:
    def __init__(self) -> None:
        self.store = get_store()
        self.limiter = Limiter([RULE], self.store)
        self.leases: list[Any] = []

    def acquire(self, ident: str, times: int = 1) -> int:
        agent.ensure(self.store)
        taken = [lease for _ in range(times) if (lease := self.limiter.acquire(ident).lease)]
        self.leases += taken
        return len(taken)

    def release(self, times: int) -> int:
        for _ in range(times):
            self.limiter.release(self.leases.pop())
        return len(self.leases)

    def uid(self) -> str:
        return self.store.leases.uid


def main() -> None:
    holder = Holder()
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        print(json.dumps(getattr(holder, verb)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
