"""The WebSocket doors: a mixin for Channels consumers and a middleware for any ASGI application.

Rules of event ``connect`` limit the rate of handshakes, ``connection`` the sockets open at once (both are
one decision), ``message`` the frames that come in. One implementation serves both doors; guard a socket
with one of them, since each charges the rules that its scope matches.
"""

from __future__ import annotations

from typing import Any

from django_throttle.core import Decision
from django_throttle.sockets.asgi import Application, Event, Receive, Scope, Send
from django_throttle.sockets.frames import error_payload
from django_throttle.sockets.guard import guarded
from django_throttle.sockets.terms import Terms

__all__ = ["ThrottleMiddleware", "ThrottledConsumerMixin"]


class ThrottledConsumerMixin:
    """Puts a consumer, sync or async, under the rules of its scope; stands left of the consumer's base.

    The scope is ``throttle_scope``, else the class's name: Channels does not tell a consumer the name of
    its route. ``refuse`` is "http" (429 in place of the handshake) or "frame" (accept, say why, close);
    the setting REFUSE_SOCKET when None. The hooks run on the event loop: they must not block.
    """

    throttle_scope: str | None = None
    refuse: str | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        left = cls.__mro__[: cls.__mro__.index(ThrottledConsumerMixin)]
        for base in left:
            if "__call__" in vars(base) and not issubclass(base, ThrottledConsumerMixin):
                raise TypeError(f"{cls.__name__}: ThrottledConsumerMixin must stand left of {base.__name__}")

    def throttle_cost(self, message: Event) -> int:
        """What an incoming frame (a ``websocket.receive`` event, not decoded) costs."""
        return 1

    def throttle_error_payload(self, decision: Decision) -> object:
        """What a refused client is told: text and bytes go as they are, anything else as JSON."""
        return error_payload(decision)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        name = self.throttle_scope or type(self).__name__
        terms = Terms(name, self.refuse, self.throttle_cost, self.throttle_error_payload)
        await guarded(super().__call__, scope, receive, send, terms)  # type: ignore[misc]


class ThrottleMiddleware:
    """Puts any ASGI application (a consumer, a URLRouter) under the rules of one scope.

    Stands inside the middleware that finds the user, so that rules per user see one.
    """

    def __init__(self, app: Application, scope: str = "websocket", *, refuse: str | None = None) -> None:
        self.app = app
        self.terms = Terms(scope, refuse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await guarded(self.app, scope, receive, send, self.terms)
