"""Runs generators that yield what to ask and are sent the answers, with and without an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Abandon = Callable[[tuple[Any, ...]], object]


class Step(NamedTuple):
    """What a generator has done by calling ``do``; on an event loop by awaiting what ``ado`` returns."""

    do: Callable[[], Any]
    ado: Callable[[], Awaitable[Any]]


def drive(steps: Generator[Any, Any, T], ask: Callable[[Any], Any], abandon: Abandon | None = None) -> T:
    """The value that the generator returns; what ``ask`` or a step raises is thrown into it.

    ``abandon`` gets all that was asked when the generator raises.
    """
    sent: tuple[Any, ...] = ()
    try:
        asked = next(steps)
        while True:
            try:
                if isinstance(asked, Step):
                    answer = asked.do()
                else:
                    sent += (asked,)
                    answer = ask(asked)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the generator ends by it
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except BaseException as error:
        if abandon:
            abandon(sent)
        if isinstance(error.__cause__, StopIteration):  # a step's own, of which Python has made a RuntimeError
            raise error.__cause__ from None
        raise


async def adrive(
    steps: Generator[Any, Any, T], ask: Callable[[Any], Awaitable[Any]], abandon: Abandon | None = None
) -> T:
    """The same, awaiting ``ask`` and the steps."""
    sent: tuple[Any, ...] = ()
    try:
        asked = next(steps)
        while True:
            try:
                if isinstance(asked, Step):
                    answer = await asked.ado()
                else:
                    sent += (asked,)
                    answer = await ask(asked)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the generator ends by it
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except BaseException:
        if abandon:
            abandon(sent)
        raise
