"""Runs generators that yield what to ask and are sent the answers, with and without an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")
T = TypeVar("T")


def drive(steps: Generator[Asked, Answered, T], ask: Callable[[Asked], Answered]) -> T:
    """The value that the generator returns; errors of ``ask`` are thrown into it."""
    try:
        asked = next(steps)
        while True:
            try:
                answer = ask(asked)
            except Exception as error:  # noqa: BLE001 - the generator raises what it does not expect
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value


async def adrive(steps: Generator[Asked, Answered, T], ask: Callable[[Asked], Awaitable[Answered]]) -> T:
    """The same, awaiting ``ask``."""
    try:
        asked = next(steps)
        while True:
            try:
                answer = await ask(asked)
            except Exception as error:  # noqa: BLE001
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
