"""A site's own functions: one that fails is logged, and its sockets are told, and closed, all the same."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from inspect import iscoroutine
from typing import Final, TypeVar

from django_throttle.sockets.asgi import Event
from django_throttle.sockets.frames import encoded
from django_throttle.stores.complaints import Complaints

logger = logging.getLogger("django_throttle")

T = TypeVar("T")

_complaints: Final = Complaints()


def told(own: Callable[[T], object], standard: Callable[[T], object], subject: T) -> str | bytes:
    """What a client is told of this, encoded: what the site says, or what is said as a rule where that is nothing."""
    try:
        payload = own(subject)
        if iscoroutine(payload):
            payload.close()  # nobody will ever wait for it
            raise TypeError("it is asynchronous: it must say at once what is to be told")
        return encoded(payload)
    except Exception as error:  # noqa: BLE001 - it may raise anything
        complain(own, error, "what it says cannot be sent, and the standard frame goes instead")
        return encoded(standard(subject))


def kind_of(own: Callable[[Event], Hashable | None], message: Event) -> Hashable | None:
    """Of which kind a frame is."""
    try:
        kind = own(message)
        hash(kind)
    except Exception as error:  # noqa: BLE001 - as above
        complain(own, error, "the frame is taken to be of no kind")
        return None
    return kind


def complain(own: object, error: Exception, so: str) -> None:
    """Log what a function of the site's has raised, at most once a minute for each."""
    name = getattr(own, "__qualname__", None) or repr(own)
    if _complaints.due(name):
        logger.error("%s failed: %s", name, so, exc_info=error)
