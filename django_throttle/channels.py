"""The WebSocket entry points: a mixin for Channels consumers and a middleware for any ASGI application.

Rules of event ``connect`` limit the rate of handshakes, ``connection`` the sockets open at once (both are one
decision), ``message`` the frames that come in, ``send`` those that go out. One implementation serves both entry points.
Where both guard a socket, a rule that both match is charged once. ``throttled_group_send`` charges rules of event
``publish`` for everyone whom a publication reaches.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import timedelta
from typing import Any

from django_throttle import agent
from django_throttle.core import Decision
from django_throttle.runtime import shutdown
from django_throttle.websockets import handshake
from django_throttle.websockets.error_frames import (
    Application,
    DroppedFrames,
    Event,
    Receive,
    Scope,
    Send,
    continuity_payload,
    error_payload,
)
from django_throttle.websockets.frame_throttle import RESERVED, FrameThrottle, measure
from django_throttle.websockets.groups import ChannelLayerAttribute
from django_throttle.websockets.publish import throttled_group_send, throttled_group_send_sync
from django_throttle.websockets.settings import check_class, consumer_settings, middleware_settings

__all__ = [
    "ThrottleMiddleware",
    "ThrottledConsumerMixin",
    "group",
    "throttled_group_send",
    "throttled_group_send_sync",
]


def group(call: object) -> None:
    """Name the group of a publication: as the ``key`` of a rule, it gives each group its own budget.

    Calls that are no publications have no group.
    """


class ThrottledConsumerMixin:
    """Puts a consumer, sync or async, under the rules of its scope; stands left of the consumer's base.

    The scope is ``throttle_scope``, else the class's name: Channels does not tell a consumer the name of
    its route. ``refuse`` is "http" (429 in place of the handshake) or "frame" (accept, say why, close);
    the setting REFUSE_SOCKET when None. The hooks run on the event loop: they must not block.

    ``throttle_ladder`` says from which refused message in a row on "error", "delay" or "close" is the answer; 0 for
    never. ``throttle_close_codes`` gives reasons other close codes. ``throttle_idle_timeout`` and
    ``throttle_max_age``, in seconds, replace the settings. ``throttle_on_rule_change`` is what becomes of sockets
    that are too many when a limit becomes lower: "ignore", "warn" or "close". ``throttle_answers`` is "each" for an
    answer to each refused message, "once" for no other until a message can pass. See docs/reference/sockets.rst.
    """

    throttle_scope: str | None = None
    refuse: str | None = None
    throttle_ladder: Mapping[str, int] | None = None
    throttle_close_codes: Mapping[str, int] = {}
    throttle_idle_timeout: float | timedelta | None = None
    throttle_max_age: float | timedelta | None = None
    throttle_on_rule_change: str = "warn"
    throttle_answers: str = "each"
    channel_layer: Any = ChannelLayerAttribute()
    throttle = FrameThrottle()  # spends nothing; each frame under a rule of a measured unit brings its own

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        left = cls.__mro__[: cls.__mro__.index(ThrottledConsumerMixin)]
        for base in left:
            if "__call__" in vars(base) and not issubclass(base, ThrottledConsumerMixin):
                raise TypeError(f"{cls.__name__}: ThrottledConsumerMixin must stand left of {base.__name__}")
        check_class(cls)

    def throttle_cost(self, message: Event) -> int:
        """What an incoming frame (a ``websocket.receive`` event, not decoded) costs; a number in its place does too."""
        return 1

    def throttle_error_payload(self, decision: Decision, *args: Any, **kwargs: Any) -> object:
        """The frame for a refused client: text and bytes are sent as they are, anything else as JSON.

        A method with a parameter ``message`` gets the refused message too, None for a handshake.
        """
        return error_payload(decision)

    def throttle_coalesce(self, message: Event) -> Hashable | None:
        """The kind of an outgoing frame (a ``websocket.send`` event), if only the newest of a kind matters; else None.

        Over the limit the newest of each kind is sent later; frames without a kind are dropped.
        """
        return None

    def throttle_continuity_payload(self, dropped: DroppedFrames) -> object:
        """The frame for a client after frames to it were dropped."""
        return continuity_payload(dropped)

    def dispatch(self, message: Event) -> Any:  # nothing, or of an asynchronous consumer something to await
        """Handle an event; a frame that has reserved a cost is measured, and settled when it has been handled."""
        handle = super().dispatch  # type: ignore[misc]
        state = message.get(RESERVED)
        if state is None:
            return handle(message)
        self.throttle = FrameThrottle(state)
        return measure(handle, message, state)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:  # with the types of the consumer's base
        try:
            settings = consumer_settings(self, ThrottledConsumerMixin)
            return await handshake.run(super().__call__, scope, receive, send, settings)  # type: ignore[misc]
        finally:
            ChannelLayerAttribute.end(self)
            if shutdown.has_begun:
                await agent.socket_ended()


class ThrottleMiddleware:
    """Puts any ASGI application (a consumer, a URLRouter) under the rules of one scope.

    Put it inside the middleware that finds the user, so that rules per user apply. ``options`` are what the mixin
    has as attributes and hooks: ``cost``, ``payload``, ``coalesce``, ``continuity``, ``close_codes``, ``ladder``,
    ``idle_timeout``, ``max_age``, ``on_rule_change``, ``answers``.
    """

    def __init__(
        self, app: Application, scope: str = "websocket", *, refuse: str | None = None, **options: Any
    ) -> None:
        self.app = app
        self.settings = middleware_settings(scope, refuse, options)

    @property
    def _path_routing(self) -> bool:
        """An outer URLRouter reads it, to leave the rest of the path to an inner one."""
        return getattr(self.app, "_path_routing", False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> object:
        try:
            return await handshake.run(self.app, scope, receive, send, self.settings)
        finally:
            if shutdown.has_begun:
                await agent.socket_ended()
