"""Error frames in the form of GraphQL subprotocols, whose clients close the connection for any other frame.

Error frames of other sockets are sent unchanged. ``graphql-transport-ws`` is the protocol of the library graphql-ws,
``graphql-ws`` that of its predecessor subscriptions-transport-ws.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

Payload = Mapping[str, Any]


class Message(NamedTuple):
    """The type and the id of a client's message; None if it has none."""

    type: object = None
    id: str | int | None = None


class Subprotocol:
    """The frames of a socket without a known subprotocol: payloads are sent unchanged."""

    close_codes: Mapping[str, int] = {}  #: close codes by reason, in place of the defaults

    def answer(self, message: Message, payload: object) -> object | None:
        """Return the payload that answers a refused message, or None for no answer."""
        return payload

    def notice(self, payload: object) -> object | None:
        """Return the payload of a frame that is no answer, or None if the subprotocol has no such frame."""
        return payload

    def last(self, payload: object) -> object | None:
        """Return the payload of the last frame before a close, or None for no frame."""
        return payload

    def last_before_start(self, payload: object) -> object | None:
        """Return the payload of the last frame before a close that precedes the first operation."""
        return self.last(payload)

    def read(self, event: Mapping[str, object]) -> Message:
        """Return the type and id of a client's message."""
        return Message()

    def ends_operation(self, message: Message) -> bool:
        """Return True for a message that only frees resources of the server: it passes although it is refused."""
        return False

    def opens(self, message: Message) -> bool:
        """Return True for the message that opens the session. The socket is closed if it is refused."""
        return False


class _GraphQL(Subprotocol):
    operation: str
    ends: tuple[str, ...]

    def read(self, event: Mapping[str, Any]) -> Message:
        text = event.get("text")
        try:
            content = json.loads(text if text is not None else event.get("bytes") or b"")
        except (ValueError, RecursionError):
            return Message()
        if not isinstance(content, dict):
            return Message()
        number = content.get("id")
        return Message(content.get("type"), number if isinstance(number, str | int) else None)

    def answer(self, message: Message, payload: object) -> object | None:
        if not isinstance(payload, Mapping) or "id" in payload:  # formed by a function of the site
            return payload
        return self.error(message.id, payload) if message.type == self.operation and message.id is not None else None

    def error(self, operation: str | int, payload: Payload) -> Payload:
        """Return the frame that ends an operation with an error."""
        return {"id": operation, "type": "error", "payload": _error(payload)}

    def ends_operation(self, message: Message) -> bool:
        return message.type in self.ends

    def opens(self, message: Message) -> bool:
        return message.type == "connection_init"


def _error(payload: Payload) -> Payload:
    """Return a payload as a GraphQL error, with all but its text under ``extensions``."""
    extensions = {key: value for key, value in payload.items() if key not in ("type", "detail")}
    return {"message": payload.get("detail") or "Rate limit exceeded.", "extensions": extensions}


class _TransportWs(_GraphQL):
    # Its clients do not reconnect after 4429, which means "too many initialisation requests" there.
    close_codes = {"rate_limited": 4425}
    operation, ends = "subscribe", ("complete",)

    def answer(self, message: Message, payload: object) -> object | None:
        if message.type == "ping":  # its client closes the connection without an answer
            return {"type": "pong"}
        return super().answer(message, payload)

    def error(self, operation: str | int, payload: Payload) -> Payload:
        return {**super().error(operation, payload), "payload": [_error(payload)]}

    def notice(self, payload: object) -> object | None:
        """Return a pong with the payload: the only frame that a server may send at any time."""
        return {"type": "pong", "payload": payload} if isinstance(payload, Mapping) else None

    last = notice

    def last_before_start(self, payload: object) -> object | None:
        """Return None, as some clients accept only an acknowledgement then. The close has a reason."""
        return None


class _SubscriptionsTransportWs(_GraphQL):
    operation, ends = "start", ("stop", "connection_terminate")

    def notice(self, payload: object) -> object | None:
        return None

    def last(self, payload: object) -> object | None:
        return {"type": "connection_error", "payload": _error(payload)} if isinstance(payload, Mapping) else None


PLAIN: Final = Subprotocol()
SUBPROTOCOLS: Final[Mapping[object, Subprotocol]] = {
    "graphql-transport-ws": _TransportWs(),
    "graphql-ws": _SubscriptionsTransportWs(),
}


def subprotocol_of(name: object) -> Subprotocol:
    """Return the subprotocol of this name, PLAIN for any other and for None."""
    return SUBPROTOCOLS.get(name, PLAIN)
