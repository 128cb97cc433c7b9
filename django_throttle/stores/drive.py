"""The only sync/async twins of the decision: they carry a flow's commands to a store."""

from __future__ import annotations

from django_throttle.core.flow import Flow, T
from django_throttle.exceptions import StoreError
from django_throttle.stores.base import Store


def run(flow: Flow[T], store: Store) -> T:
    """Run a flow to its end; what the store raises is thrown into the flow."""
    try:
        command = next(flow)
        while True:
            try:
                reply = store.execute(command)
            except StoreError as error:
                command = flow.throw(error)
            else:
                command = flow.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value


async def arun(flow: Flow[T], store: Store) -> T:
    """The same, awaiting the store."""
    try:
        command = next(flow)
        while True:
            try:
                reply = await store.aexecute(command)
            except StoreError as error:
                command = flow.throw(error)
            else:
                command = flow.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value
