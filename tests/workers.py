"""Workers of both queues without their processes, and slots that a test takes and gives back.

Celery's runs messages one by one, and keeps what is published meanwhile.
"""

from datetime import datetime
from typing import Any, NamedTuple

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from celery.worker.request import Request
from django.core.management import call_command
from kombu.message import Message as Carrier

from django_throttle import limiter
from django_throttle.core import Lease
from django_throttle.core.decide import release_lease
from django_throttle.core.io import run
from django_throttle.identity.call import Call
from django_throttle.identity.caller import IdentCaller
from django_throttle.local.freed_slots import freed_slots
from django_throttle.stores import get_store
from django_throttle.stores.base import BlockingIo


class Message(NamedTuple):
    task: Any
    headers: dict[str, Any]
    body: Any
    options: dict[str, Any]

    @property
    def eta(self) -> float:
        eta = self.headers["eta"]
        return 0.0 if eta is None else datetime.fromisoformat(eta).timestamp()


class Worker:
    def __init__(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app = app
        self.due: list[Message] = []
        monkeypatch.setattr(app.amqp, "send_task_message", self._send)

    def _send(self, producer: Any, name: str, message: Any, **options: Any) -> None:
        headers = message.headers | (options.get("headers") or {})
        self.due.append(Message(self.app.tasks[name], headers, message.body, options))

    def take(self, *, later: bool = False) -> Message:
        """Take the first message that is due at once, or the first that is due later."""
        message = next(message for message in self.due if bool(message.eta) is later)
        self.due.remove(message)
        return message

    def run(self, message: Message | None = None) -> str:
        """Run a message, else the first that is due, and return the state that the run ends in."""
        task, headers, (args, kwargs, embed), options = message or self.due.pop(0)
        if Request(
            Carrier(), app=self.app, task=task, headers=headers, body=(args, kwargs, embed), decoded=True
        ).revoked():
            return "REVOKED"
        delivered = {"exchange": "", "routing_key": options.get("routing_key") or "mails"}
        request = headers | embed | {"delivery_info": delivered}
        traced = build_tracer(task.name, task, app=self.app)(headers["id"], args, kwargs, request)
        return str(traced.info.state if traced.info else "SUCCESS")


def work() -> None:
    call_command("db_worker", batch=True, interval=0, startup_delay=False, reload=False, verbosity=0)


def take_slot(ident: str) -> Lease:
    lease = limiter.decide(Call("x", ("task",), IdentCaller(ident), rule="exports", ident=ident)).lease
    assert lease is not None
    return lease


def give_back(*leases: Lease) -> None:
    for lease in leases:
        run(release_lease(BlockingIo(get_store()), lease))
    freed_slots.drain()
