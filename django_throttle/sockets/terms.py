"""What a door says of its socket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django_throttle.conf import conf
from django_throttle.core import Decision
from django_throttle.exceptions import InvalidSetting
from django_throttle.sockets.asgi import Event
from django_throttle.sockets.frames import error_payload
from django_throttle.sockets.refusal import REFUSALS, Refusal


def cost_one(message: Event) -> int:
    """Every frame costs 1."""
    return 1


@dataclass(frozen=True, slots=True)
class Terms:
    """The scope whose rules apply, how a handshake is refused, what a frame costs, what a client is told."""

    scope: str
    refuse: str | None = None
    cost: Callable[[Event], int] = cost_one
    payload: Callable[[Decision], object] = error_payload

    def refusal(self) -> Refusal:
        """How a handshake is refused; raises InvalidSetting for a way that does not exist."""
        way = self.refuse or conf().REFUSE_SOCKET
        if way not in REFUSALS:
            raise InvalidSetting(f"a socket is refused by one of {', '.join(REFUSALS)}, not {way!r}")
        return REFUSALS[way]
