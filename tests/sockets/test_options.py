"""What a door is told, and makes no sense, is said where it is written: not at the first handshake."""

from __future__ import annotations

from collections import UserDict
from datetime import timedelta
from typing import Any

import pytest
from channels.consumer import AsyncConsumer
from channels.exceptions import StopConsumer
from channels.generic.http import AsyncHttpConsumer
from channels.generic.websocket import AsyncWebsocketConsumer

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.exceptions import InvalidSetting
from django_throttle.sockets.settings import OPTIONS, SocketSettings, misspelt_options
from tests.consumers import TWO_SOCKETS, AsyncEcho, handshake, opened
from tests.doors import Enforce, enforcer

enforce = pytest.fixture(enforcer)
ATTRIBUTES = {option: name for name, option in OPTIONS.items()}


async def app(scope: Any, receive: Any, send: Any) -> None: ...


async def asynchronous(_: Any) -> None: ...


WRONG: list[tuple[str, Any, str]] = [
    ("scope", ["chat"], "must be a name, not \\['chat'\\]"),
    ("scope", 7, "must be a name"),
    ("refuse", "frmae", "one of http, frame, not 'frmae'; did you mean 'frame'"),
    ("refuse", ["frame"], "one of http, frame"),
    ("payload", {"error": "slow down"}, "payload must be a function"),
    ("payload", asynchronous, "must not be asynchronous"),
    ("coalesce", "symbol", "coalesce must be a function"),
    ("cost", -1, "cost must be a whole number of 0 or more, or a function, not -1"),
    ("cost", 0.5, "not 0.5"),
    ("cost", "x", "not 'x'"),
    ("cost", asynchronous, "cost must not be asynchronous"),
    ("continuity", asynchronous, "continuity must not be asynchronous"),
    ("close_codes", {"rate_limit": 4000}, "did you mean 'rate_limited'"),
    ("close_codes", {"rate_limited": 1008}, "from 3000 to 4999"),
    ("close_codes", {"rate_limited": "4429"}, "from 3000 to 4999"),
    ("close_codes", {4429: 4000}, "the reason of a close code must be one of"),
    ("close_codes", 4000, "must be a dictionary"),
    ("close_codes", None, "must be a dictionary"),
    ("ladder", {"clsoe": 3}, "did you mean 'close'"),
    ("ladder", {"close": -1}, "whole numbers"),
    ("ladder", {"close": True}, "whole numbers"),
    ("ladder", ["close"], "a ladder must be a dictionary"),
    ("idle_timeout", -1, "idle_timeout must be a number of seconds, 0 for never, not -1"),
    ("idle_timeout", float("nan"), "not nan"),
    ("idle_timeout", "10", "not '10'"),
    ("idle_timeout", True, "not True"),
    ("max_age", float("inf"), "max_age must be a number of seconds"),
    ("max_age", timedelta(seconds=-1), "max_age must be a number of seconds"),
    ("on_rule_change", "shrug", "one of ignore, warn, close"),
    ("on_rule_change", None, "one of ignore, warn, close"),
]
EACH = pytest.mark.parametrize(
    ("option", "value", "message"),
    WRONG,
    ids=[f"{name} {getattr(value, '__name__', value)}" for name, value, _ in WRONG],
)


@EACH
def test_the_middleware_says_so_when_it_is_made(option: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        ThrottleMiddleware(app, **{option: value})


@EACH
def test_a_consumer_says_so_when_its_class_is_made(option: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        type("Wrong", (AsyncEcho,), {ATTRIBUTES[option]: value})


@pytest.mark.parametrize(
    ("option", "meant"), [("reufse", "refuse"), ("laddder", "ladder"), ("idle_timout", "idle_timeout")]
)
def test_an_option_that_there_is_not_is_named_with_the_nearest(option: str, meant: str) -> None:
    with pytest.raises(InvalidSetting, match=f"no option '{option}'; did you mean '{meant}'"):
        ThrottleMiddleware(app, "chat", **{option: None})


@pytest.mark.parametrize("value", [0, 0.5, 60, timedelta(minutes=1)])
def test_times_are_numbers_of_seconds_or_timedeltas(settings: Any, value: Any) -> None:
    settings.DJANGO_THROTTLE = {}
    terms = ThrottleMiddleware(app, idle_timeout=value, max_age=value).settings
    expected = 60.0 if isinstance(value, timedelta) else value
    assert terms.lifetimes() == (expected, expected)


def test_any_mapping_does() -> None:
    SocketSettings("chat", ladder=UserDict(close=3), close_codes=UserDict(idle=4001)).check()


async def test_what_a_property_says_is_known_at_the_handshake(enforce: Enforce) -> None:
    class Choosing(AsyncEcho):
        @property
        def throttle_ladder(self) -> Any:  # type: ignore[override]
            return {"clsoe": 1}

    enforce()
    with pytest.raises(InvalidSetting, match="did you mean 'close'"):
        await handshake(Choosing.as_asgi())


def test_a_consumer_of_requests_is_no_socket() -> None:
    with pytest.raises(TypeError, match="Polled: ThrottledConsumerMixin limits sockets"):
        type("Polled", (ThrottledConsumerMixin, AsyncHttpConsumer), {})


@pytest.mark.parametrize("base", [AsyncWebsocketConsumer, AsyncConsumer])
async def test_a_mixin_of_ones_own_and_a_bare_consumer_are_fine(enforce: Enforce, base: type) -> None:
    """They are made, and limited by the scope that the mixin of one's own says."""

    async def accept(self: Any, event: Any) -> None:
        await self.send({"type": "websocket.accept"})

    async def end(self: Any, event: Any) -> None:
        raise StopConsumer

    bare = {"websocket_connect": accept, "websocket_disconnect": end}
    mixin = type("Mixin", (ThrottledConsumerMixin,), {"throttle_scope": "chat"})
    consumer = type("Chat", (mixin, base), bare if base is AsyncConsumer else {})
    enforce(sockets={**TWO_SOCKETS, "limit": 1, "scopes": ["chat"]})
    first = await opened(consumer.as_asgi())
    told = await handshake(consumer.as_asgi())
    await first.disconnect()
    assert [(event["type"], event.get("code")) for event in told] == [("websocket.close", 4430)]


def test_attributes_that_are_nearly_ours() -> None:
    names = {
        "throttle_laddder": 1,
        "throttle_refuse": 1,
        "throttle_payload": 1,
        "throttle_idle_timout": 1,
        "throttle_ladder": {},
        "throttle_channel": "a site's own",
        "throttled_by": "a site's own",
        "laddder": "not for us to say",
    }
    assert dict(misspelt_options(type("Misspelt", (AsyncEcho,), names))) == {
        "throttle_laddder": "throttle_ladder",
        "throttle_refuse": "refuse",
        "throttle_payload": "throttle_error_payload",
        "throttle_idle_timout": "throttle_idle_timeout",
    }
