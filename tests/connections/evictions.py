"""Sockets without sockets: what a handshake decides, and who is told to go."""

import time
from typing import Any

import pytest

from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Decision, Lease, Rule
from django_throttle.core.commands import Charge, charge
from django_throttle.core.control_messages import ControlMessage
from django_throttle.core.io import run
from django_throttle.limiter import decide_fully
from django_throttle.local.open_sockets import open_sockets
from django_throttle.stores import MemoryStore, RedisStore
from django_throttle.stores.base import BlockingIo, LoopIo
from django_throttle.stores.redis.scripts import script
from django_throttle.websockets.error_frames import Close, close_code
from tests.connections.worker import SECRET

Store = MemoryStore | RedisStore


def redis_store(url: str, **options: Any) -> RedisStore:
    return RedisStore(url, **{"secret": SECRET, "deadline": 5.0, **options})


class Door:
    def __init__(self, store: Store, *rules: Rule) -> None:
        self.store, self.rules = store, rules
        self.gone: list[str] = []  # leases that the store does not take back

    def _charges(self, ident: str) -> tuple[Charge, ...]:
        return tuple(charge(rule, ident, 1) for rule in self.rules)

    def open(self, ident: str = "user:1") -> Decision:
        return run(decide_fully(BlockingIo(self.store), self._charges(ident), socket=True))

    async def aopen(self, ident: str = "user:1") -> Decision:
        return await decide_fully(LoopIo(self.store), self._charges(ident), socket=True)

    def count(self, ident: str = "user:1") -> int:
        decision = run(decide_fully(BlockingIo(self.store), self._charges(ident)[:1], commit=False))
        assert decision.limit is not None and decision.remaining is not None and not decision.degraded
        return decision.limit - decision.remaining

    def messages(self) -> list[ControlMessage]:
        return list(self.store.control.fetch())

    def closed(self) -> list[str]:
        return [order.lease for order in self.messages() if order.kind == "close"]

    def reconciler(self) -> Reconciler:
        assert isinstance(self.store, RedisStore)
        return Reconciler(self.store, self.gone.extend)


def lease_of(decision: Decision) -> str:
    assert decision.allowed and decision.lease is not None
    return decision.lease.id


def lose(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(door.store, RedisStore)
    link = door.store.transport
    send, asend = link.send_all, link.asend_all

    def arrive(calls: Any, replies: Any) -> Any:
        if any(call.script is script("evict") for call in calls):
            raise TimeoutError
        return replies

    async def asend_all(calls: Any, *rest: Any) -> Any:
        return arrive(calls, await asend(calls, *rest))

    monkeypatch.setattr(link, "send_all", lambda calls, *rest: arrive(calls, send(calls, *rest)))
    monkeypatch.setattr(link, "asend_all", asend_all)


class Recorder:
    """A socket that only says what was done to it."""

    address = "192.0.2.7"
    received = refused = sent = lost = 0

    def __init__(self, name: str, idents: tuple[str, ...], *, scope: str = "chat", path: str = "/ws/chat") -> None:
        self.id, self.scope, self.path = name, scope, path
        self.opened = self.last_received = time.monotonic()
        self.leases = tuple(Lease(f"~{name}{ident}", (("rule", ident),)) for ident in idents)
        self.closed: Close | None = None
        open_sockets.add(self)

    @property
    def idents(self) -> frozenset[str]:
        return frozenset(ident for lease in self.leases for _, ident in lease.lease_keys)

    def close_code(self, reason: str) -> int:
        return close_code(reason)

    def close(self, code: int, reason: str, payload: object = None) -> None:
        self.closed = Close(code, reason, payload)
        open_sockets.remove(self)

    def reset(self) -> None:
        raise AssertionError("nobody has reset anything")


def sockets(*names: tuple[str, str], **options: Any) -> list[Recorder]:
    return [Recorder(name, (ident,), **options) for name, ident in names]
