"""What a store is, and how a flow's commands are carried to one, with and without an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

from django_throttle.connections.leases import Leases
from django_throttle.core.commands import Command, Decide, DecideLocally, Evict, Release
from django_throttle.core.control_messages import ControlMessage
from django_throttle.core.decide import T
from django_throttle.core.decision import Lease
from django_throttle.local_limits import LocalLimits
from django_throttle.stores.denials import Denials


class Control(Protocol):
    """Control messages between processes; an ident is named by its tag."""

    def give(self, messages: Iterable[ControlMessage]) -> None: ...

    def resend(self) -> None: ...

    def fetch(self) -> dict[ControlMessage, float]: ...

    def tag(self, ident: str) -> str: ...


class Store(Protocol):
    """Where counters live. Executes one command and answers it, or raises StoreError.

    ``is_remote`` where other processes share it, and it may not answer. ``is_costly`` where asking takes a round
    trip: then ``denials`` remember refusals, and units are bought ahead. ``local_limits`` decide
    what dampers refuse, and hold what is bought. ``leases`` are those that this process holds, ``control`` what
    other processes ask of it.
    """

    denials: Denials
    local_limits: LocalLimits
    leases: Leases

    @property
    def is_remote(self) -> bool: ...

    @property
    def is_costly(self) -> bool: ...

    @property
    def control(self) -> Control: ...

    def execute(self, command: Command) -> Any: ...

    async def aexecute(self, command: Command) -> Any: ...

    def release_soon(self, command: Release) -> None: ...


Undo = Callable[[tuple[Any, ...]], object]


class Step(NamedTuple):
    """What a generator has done by calling ``do``; on an event loop by awaiting what ``ado`` returns."""

    do: Callable[[], Any]
    ado: Callable[[], Awaitable[Any]]


def drive(steps: Generator[Any, Any, T], ask: Callable[[Any], Any], undo: Undo = len) -> T:
    """The value that the generator returns; what ``ask`` or a step raises is thrown into it.

    ``undo`` is called with all that was asked when the generator raises.
    """
    sent: tuple[Any, ...] = ()
    try:
        asked = next(steps)
        while True:
            try:
                sent += (asked,)
                answer = asked.do() if isinstance(asked, Step) else ask(asked)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the generator ends by it
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except BaseException as error:
        undo(sent)
        if isinstance(error.__cause__, StopIteration):  # a step's own, of which Python has made a RuntimeError
            raise error.__cause__ from None
        raise


async def adrive(steps: Generator[Any, Any, T], ask: Callable[[Any], Awaitable[Any]], undo: Undo = len) -> T:
    """The same, awaiting ``ask`` and the steps."""
    sent: tuple[Any, ...] = ()
    try:
        asked = next(steps)
        while True:
            try:
                sent += (asked,)
                answer = await (asked.ado() if isinstance(asked, Step) else ask(asked))
            except BaseException as error:  # noqa: BLE001 - whatever it is, the generator ends by it
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except BaseException:
        undo(sent)
        raise


Steps = Generator[Command | Step, Any, T]


def run(flow: Steps[T], store: Store) -> T:
    """Run a flow to its end; what the store or a step raises is thrown into the flow."""
    return drive(flow, store.execute, partial(_release_taken, store))


def arun(flow: Steps[T], store: Store) -> Coroutine[Any, Any, T]:
    """The same, awaiting the store and the steps."""
    return adrive(flow, store.aexecute, partial(_release_taken, store))


def _release_taken(store: Store, commands: Iterable[Command]) -> None:
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
        store.leases.release_later(Lease(lease, tuple(holds)))
