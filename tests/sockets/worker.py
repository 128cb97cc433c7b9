"""A process with open sockets, its agent at work: told what to do over a pipe, one JSON command and answer a line.

``Worker`` starts it as ``python -m tests.sockets.worker '{"REDIS": …}'``; other settings are as in ``QUICK``.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SECRET = "the same in all tests of sockets"
# A tenth of the defaults; what machines may take is no part of it.
QUICK = {"BEAT_INTERVAL": 0.5, "PROCESS_TTL": 2.0, "RULES_POLL": 0.1, "DATABASE_RULES": False, "DEADLINE": 5.0}
GRACE_SECONDS = 1.0
ADDRESS = "203.0.113.9"
GROUP = "news"


class Worker:
    """Our end of the pipe."""

    def __init__(self, **settings: Any) -> None:
        throttle = {**QUICK, "KEY_SECRET": SECRET, **settings}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sockets.worker", json.dumps(throttle)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
            bufsize=1,
        )

    def say(self, verb: str, **arguments: Any) -> None:
        """Begin something; ``hear`` the answer."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps([verb, arguments]) + "\n")

    def hear(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def ask(self, verb: str, **arguments: Any) -> Any:
        self.say(verb, **arguments)
        return self.hear()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def started(*workers: Worker) -> Iterator[list[Worker]]:
    """Processes that are ready, and killed at the end."""
    try:
        assert [worker.hear() for worker in workers] == ["ready"] * len(workers)
        yield [*workers]
    finally:
        for worker in workers:
            worker.kill()


class Sockets:
    """The other end: each public method is a command."""

    def __init__(self) -> None:
        from channels.generic.websocket import AsyncWebsocketConsumer

        from django_throttle.channels import ThrottledConsumerMixin

        class Echo(ThrottledConsumerMixin, AsyncWebsocketConsumer):
            async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
                await self.send(text_data)

            async def news_told(self, event: dict[str, Any]) -> None:
                await self.send(event["text"])

        self.consumer = Echo
        self.lines: list[Any] = []

    async def open(self, user: str, times: int = 1, scope: str = "chat", address: str = ADDRESS) -> list[int]:
        """Return the codes of so many handshakes at once that were refused, and 0 for each other."""
        from tests.sockets.guarded import Line

        groups = [GROUP] if scope == GROUP else []
        kind = type("Kind", (self.consumer,), {"throttle_scope": scope, "groups": groups})
        caller = SimpleNamespace(pk=user, is_authenticated=True)
        lines = [Line(kind.as_asgi(), address=address, user=caller) for _ in range(times)]
        await asyncio.gather(*(line.open() for line in lines))
        self.lines += [line for line in lines if not line.closed]
        return [line.closed["code"] if line.closed else 0 for line in lines]

    async def close(self, times: int) -> None:
        """Have the clients of so many sockets leave, the oldest first."""
        await asyncio.gather(*(line.close() for line in self._open()[:times]))

    async def shut(self) -> None:
        await self.close(len(self.lines))
        self.lines.clear()

    async def ended(self) -> list[list[Any]]:
        """Return the word and the code for each socket that was closed here."""
        return [[line.told("error")[-1]["code"], line.closed["code"]] for line in self.lines if line.closed]

    async def heard(self, text: str) -> list[int]:
        """Return how often each was sent this."""
        return [line.frames.count(text) for line in self._open()]

    async def send(self, times: int) -> int:
        """Send frames on the newest socket; return how many came back, when each has or was refused."""
        from django_throttle.connections.open_sockets import open_sockets

        line, text = self._open()[-1], f"x{secrets.token_hex(4)}"
        (socket,) = [socket for socket in open_sockets.everyone() if socket.who.subject is line.scope]
        refused = socket.refused
        line.send(*[text] * times)
        await line.until(lambda: line.frames.count(text) + socket.refused - refused >= times)
        return int(line.frames.count(text))

    async def publish(self, publisher: str) -> Any:
        """Return whether it was sent; where not, also the members of the group and the rule."""
        from django_throttle.channels import throttled_group_send
        from django_throttle.exceptions import PublishRefused

        try:
            await throttled_group_send(GROUP, {"type": "news.told", "text": GROUP}, publisher=publisher)
        except PublishRefused as refused:
            return [False, refused.members, refused.decision.rule]
        return [True]

    def _open(self) -> list[Any]:
        return [line for line in self.lines if not line.closed and not line.task.done()]


async def serve() -> None:
    sockets = Sockets()
    print(json.dumps("ready"), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, arguments = json.loads(line)
        print(json.dumps(await getattr(sockets, verb)(**arguments)), flush=True)


if __name__ == "__main__":
    import django
    from django.conf import settings

    from testproject.databases import database_settings

    settings.configure(
        SECRET_KEY=SECRET,
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_throttle"],
        DATABASES={"default": database_settings("")},
        CHANNEL_LAYERS={"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}},
        DJANGO_THROTTLE=json.loads(sys.argv[1]),
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()
    from django_throttle.connections import processes, reconcile

    processes.GRACE_SECONDS = reconcile.GRACE_SECONDS = GRACE_SECONDS  # type: ignore[misc]
    asyncio.run(serve())
