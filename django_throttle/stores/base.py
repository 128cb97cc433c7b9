"""What a store is, and how a flow's commands are carried to one, with and without an event loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from django_throttle.connections.leases import Registry
from django_throttle.core.commands import Command, Decide, DecideLocally
from django_throttle.core.control import Evict, Order
from django_throttle.core.decision import Lease
from django_throttle.core.flow import Flow, T
from django_throttle.damper.meters import Meters
from django_throttle.exceptions import StoreError
from django_throttle.stores.denials import Denials


class Orders(Protocol):
    """What processes order one another; an ident is named by its tag."""

    def give(self, orders: Iterable[Order]) -> None: ...

    def resend(self) -> None: ...

    def fetch(self) -> dict[Order, float]: ...

    def tag(self, ident: str) -> str: ...


class Store(Protocol):
    """Where counters live. Carries out one command and answers it, or raises StoreError.

    ``is_remote`` where it is shared with other processes and may not answer. ``denials`` remembers refusals where
    asking again is dear; None where it is not. ``meters`` decide what dampers suppress. ``leases`` are those that
    this process holds, ``orders`` what it is to do with its sockets.
    """

    @property
    def is_remote(self) -> bool: ...

    @property
    def denials(self) -> Denials | None: ...

    @property
    def meters(self) -> Meters: ...

    @property
    def leases(self) -> Registry: ...

    @property
    def orders(self) -> Orders: ...

    def execute(self, command: Command) -> Any: ...

    async def aexecute(self, command: Command) -> Any: ...


def run(flow: Flow[T], store: Store) -> T:
    """Run a flow to its end; what the store raises is thrown into the flow."""
    sent: tuple[Command, ...] = ()
    try:
        command = next(flow)
        while True:
            sent += (command,)
            try:
                reply = store.execute(command)
            except StoreError as error:
                command = flow.throw(error)
            else:
                command = flow.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except BaseException:
        _abandon(sent, store)
        raise


async def arun(flow: Flow[T], store: Store) -> T:
    """The same, awaiting the store."""
    sent: tuple[Command, ...] = ()
    try:
        command = next(flow)
        while True:
            sent += (command,)
            try:
                reply = await store.aexecute(command)
            except StoreError as error:
                command = flow.throw(error)
            else:
                command = flow.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except BaseException:
        _abandon(sent, store)
        raise


def _abandon(commands: Iterable[Command], store: Store) -> None:
    """Have the leases given back that a flow took whose end nobody sees: it was cancelled, or interrupted."""
    for command in commands:
        match command:
            case Decide(lease=str(lease), charges=charges):
                pass
            case DecideLocally(decide=Decide(lease=str(lease), charges=charges)):
                pass
            case Evict(lease=lease, charge=charge):
                charges = (charge,)
            case _:
                continue
        holds = [(charge.rule.id, charge.ident) for charge in charges if charge.rule.is_concurrency]
        store.leases.stray(Lease(lease, tuple(holds)))
