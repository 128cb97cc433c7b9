"""WebSocket entry points: a mixin for Channels consumers and a middleware for any ASGI application.

Rules of event ``connect`` limit the rate of handshakes, ``connection`` the open sockets, ``message`` incoming frames
and ``send`` outgoing frames. If both entry points guard a socket, a rule that both match is charged once.
``throttled_group_send`` charges rules of event ``publish`` for each member that a publication reaches.
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
from django_throttle.websockets.frame_throttle import FRAME_STATE_KEY, FrameThrottle, measure
from django_throttle.websockets.groups import ChannelLayerAttribute
from django_throttle.websockets.publish import throttled_group_send, throttled_group_send_sync
from django_throttle.websockets.settings import check_class, consumer_settings, middleware_settings

__all__ = [
    "ThrottleMiddleware", "ThrottledConsumerMixin", "group", "throttled_group_send", "throttled_group_send_sync",
]  # fmt: skip


def group(call: object) -> None:
    """Key of rules that gives each group of a channel layer its own budget. Only publications have a group."""


class ThrottledConsumerMixin:
    """Mixin that limits a consumer, sync or async, by the rules of its scope.

    It stands left of the consumer's base class. Its methods run on the event loop, so they must not block. See
    docs/reference/sockets.rst.
    """

    #: Scope of the rules, the class's name if None. Channels does not tell a consumer the name of its route.
    throttle_scope: str | None = None
    #: "http" answers a refused handshake with 429, "frame" accepts and closes after an error frame.
    refuse: str = "http"
    #: Number of consecutive refused messages from which "error", "delay" or "close" is the action; 0 for never.
    throttle_ladder: Mapping[str, int] | None = None
    throttle_close_codes: Mapping[str, int] = {}  #: close codes by reason, in place of the defaults
    #: Seconds of silence until a socket is closed, in place of the setting SOCKET_IDLE_TIMEOUT; 0 for never.
    throttle_idle_timeout: float | timedelta | None = None
    throttle_max_age: float | timedelta = 0  #: seconds that a socket may be open; 0 for no limit
    throttle_on_rule_change: str = "warn"  #: action for sockets above a lowered limit: "ignore", "warn" or "close"
    #: "each" answers each refused message, "once" only the first until a message can pass.
    throttle_answers: str = "each"
    channel_layer: Any = ChannelLayerAttribute()
    #: Units of the current frame. It is replaced for each frame under a rule of a measured unit.
    throttle = FrameThrottle()

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        left = cls.__mro__[: cls.__mro__.index(ThrottledConsumerMixin)]
        for base in left:
            if "__call__" in vars(base) and not issubclass(base, ThrottledConsumerMixin):
                raise TypeError(f"{cls.__name__}: ThrottledConsumerMixin must stand left of {base.__name__}")
        check_class(cls)

    def throttle_cost(self, message: Event) -> int:
        """Return the cost of an incoming frame, a ``websocket.receive`` event. The attribute may be a number too."""
        return 1

    def throttle_error_payload(self, decision: Decision, *args: Any, **kwargs: Any) -> object:
        """Return the content of an error frame. Text and bytes are sent unchanged, anything else as JSON.

        A method with a parameter ``message`` receives the refused message too, None for a handshake.
        """
        return error_payload(decision)

    def throttle_coalesce(self, message: Event) -> Hashable | None:
        """Return the kind of an outgoing frame, a ``websocket.send`` event, or None for no kind.

        Over the limit, the newest frame of each kind is sent later. Frames without a kind are dropped.
        """
        return None

    def throttle_continuity_payload(self, dropped: DroppedFrames) -> object:
        """Return the content of the frame that reports dropped frames to the client."""
        return continuity_payload(dropped)

    def dispatch(self, message: Event) -> Any:  # an awaitable for asynchronous consumers
        """Handle an event. A frame under a rule of a measured unit is measured, and settled afterwards."""
        handle = super().dispatch  # type: ignore[misc]
        state = message.get(FRAME_STATE_KEY)
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
    """Middleware that limits an ASGI application, such as a consumer or a URLRouter, by the rules of a scope.

    Put it inside the authentication middleware, so that rules per user apply. ``options`` correspond to the attributes
    and methods of the mixin: ``cost``, ``payload``, ``coalesce``, ``continuity``, ``close_codes``, ``ladder``,
    ``idle_timeout``, ``max_age``, ``on_rule_change`` and ``answers``. Raise InvalidSetting for an invalid option.
    """

    def __init__(self, app: Application, scope: str = "websocket", *, refuse: str = "http", **options: object) -> None:
        self.app = app
        self.settings = middleware_settings(scope, refuse, options)

    @property
    def _path_routing(self) -> bool:
        """The attribute of an inner URLRouter, which an outer URLRouter reads."""
        return getattr(self.app, "_path_routing", False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> object:
        try:
            return await handshake.run(self.app, scope, receive, send, self.settings)
        finally:
            if shutdown.has_begun:
                await agent.socket_ended()
