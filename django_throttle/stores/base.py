"""What a store is, and how a flow's commands are carried to one, with and without an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, NamedTuple, Protocol

from django_throttle.connections.leases import Registry
from django_throttle.core.commands import Command, Decide, DecideLocally, Release
from django_throttle.core.control import Evict, Order
from django_throttle.core.decision import Lease
from django_throttle.core.flow import T
from django_throttle.damper.meters import Meters
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


class Step(NamedTuple):
    """What a flow has done beside commands: by calling ``do``; on an event loop by awaiting what ``ado`` returns."""

    do: Callable[[], Any]
    ado: Callable[[], Awaitable[Any]]


Steps = Generator[Command | Step, Any, T]


def run(flow: Steps[T], store: Store) -> T:
    """Run a flow to its end; what the store or a step raises is thrown into the flow."""
    sent: tuple[Command, ...] = ()
    try:
        one = next(flow)
        while True:
            try:
                if isinstance(one, Step):
                    reply = one.do()
                else:
                    sent += (one,)
                    reply = store.execute(one)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the flow ends by it
                one = flow.throw(error)
            else:
                one = flow.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except BaseException as error:
        _abandon(sent, store)
        if isinstance(error.__cause__, StopIteration):  # a step's own, of which the flow has made a RuntimeError
            raise error.__cause__ from None
        raise


async def arun(flow: Steps[T], store: Store) -> T:
    """The same, awaiting the store and the steps."""
    sent: tuple[Command, ...] = ()
    try:
        one = next(flow)
        while True:
            try:
                if isinstance(one, Step):
                    reply = await one.ado()
                else:
                    sent += (one,)
                    reply = await store.aexecute(one)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the flow ends by it
                one = flow.throw(error)
            else:
                one = flow.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except BaseException:
        _abandon(sent, store)
        raise


def _abandon(commands: Iterable[Command], store: Store) -> None:
    """Have the leases released that a flow took and did not release itself: it was cancelled, or interrupted."""
    released = {command.lease for command in commands if isinstance(command, Release)}
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
        if lease in released:
            continue
        holds = [(charge.rule.id, charge.ident) for charge in charges if charge.rule.is_concurrency]
        store.leases.stray(Lease(lease, tuple(holds)))
