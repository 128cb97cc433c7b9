"""The only sync/async twins of the decision: they carry a flow's commands to a store."""

from __future__ import annotations

from collections.abc import Iterable

from django_throttle.core.command import Command, Decide, DecideLocally
from django_throttle.core.decision import Lease
from django_throttle.core.flow import Flow, T
from django_throttle.core.orders import Evict
from django_throttle.exceptions import StoreError
from django_throttle.stores.base import Store


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
