"""The options of consumers and middleware, rules of one socket, and the code of the page about WebSockets."""

import gc
from collections import UserDict
from datetime import timedelta
from typing import Any

import pytest
from channels.auth import AuthMiddlewareStack
from channels.generic.http import AsyncHttpConsumer
from channels.generic.websocket import AsyncJsonWebsocketConsumer, AsyncWebsocketConsumer
from channels.routing import URLRouter
from channels.security.websocket import OriginValidator
from channels.testing import HttpCommunicator
from django.urls import path

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.core import Outcome, Reason, Rule
from django_throttle.core.decision import combine_outcomes
from django_throttle.exceptions import InvalidRule, InvalidSetting
from django_throttle.identity import AsgiCaller, RequestCaller
from django_throttle.websockets import settings as socket_settings
from django_throttle.websockets.error_frames import Escalation
from django_throttle.websockets.limits import size_of
from django_throttle.websockets.settings import OPTIONS, SocketSettings
from tests import pages
from tests.consumers import AsyncEcho, handshake
from tests.doors import Enforce
from tests.inside import unsaid
from tests.websockets.guarded import Line

ATTRIBUTES = {option: name for name, option in OPTIONS.items()}
OWN = {"rate": "1/min", "key": "connection", "algorithm": "gcra"}
OWN_MESSAGES = {"events": ("message",), "key": "connection"}


async def app(scope: Any, receive: Any, send: Any) -> None: ...


async def asynchronous(_: Any) -> None: ...


WRONG: list[tuple[str, Any, str]] = [
    ("scope", ["chat"], "must be a name, not \\['chat'\\]"),
    ("refuse", "frmae", "one of http, frame, not 'frmae'; did you mean 'frame'"),
    ("answers", "onec", "answers must be one of each, once, not 'onec'"),
    ("payload", {"error": "slow down"}, "payload must be a function"),
    ("payload", asynchronous, "must not be asynchronous"), ("coalesce", "symbol", "coalesce must be a function"),
    ("cost", -1, "cost must be a whole number of 0 or more, or a function, not -1"),
    ("cost", asynchronous, "cost must not be asynchronous"),
    ("continuity", asynchronous, "continuity must not be asynchronous"),
    ("close_codes", {"rate_limit": 4000}, "did you mean 'rate_limited'"),
    ("close_codes", {"rate_limited": 2999}, "from 3000 to 4999"),
    ("close_codes", {"rate_limited": 5000}, "from 3000 to 4999"),
    ("close_codes", {4429: 4000}, "the reason of a close code must be one of"),
    ("close_codes", None, "must be a dictionary"), ("ladder", {"clsoe": 3}, "did you mean 'close'"),
    ("ladder", {"close": -1}, "whole numbers"), ("ladder", {"close": True}, "whole numbers"),
    ("ladder", ["close"], "a ladder must be a dictionary"),
    ("idle_timeout", -1, "idle_timeout must be a number of seconds, 0 for never, not -1"),
    ("idle_timeout", float("nan"), "not nan"), ("idle_timeout", "10", "not '10'"),
    ("idle_timeout", True, "not True"), ("max_age", timedelta(seconds=-1), "max_age must be a number of seconds"),
    ("on_rule_change", "shrug", "one of ignore, warn, close"),
    ("on_rule_change", None, "one of ignore, warn, close"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value", "message"), WRONG, ids=[f"{row[0]} {row[1]!r:.20}" for row in WRONG])
def test_nonsense_is_refused_where_it_is_written(option: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        ThrottleMiddleware(app, **{option: value})
    with pytest.raises(InvalidSetting, match=message):
        type("Wrong", (AsyncEcho,), {ATTRIBUTES[option]: value})


def test_an_unknown_option_is_named_with_the_nearest() -> None:
    with pytest.raises(InvalidSetting, match="no option 'laddder'; did you mean 'ladder'"):
        ThrottleMiddleware(app, "chat", laddder=None)


@pytest.mark.parametrize("value", [0, 0.5, 60, timedelta(minutes=1)])
def test_times_are_numbers_of_seconds_or_timedeltas(settings: Any, value: Any) -> None:
    settings.DJANGO_THROTTLE = {}
    mappings: Any = {"ladder": UserDict(close=3), "close_codes": UserDict(idle=1000, closed=3000, blocked=4999)}
    terms = ThrottleMiddleware(app, cost=0, idle_timeout=value, max_age=value, **mappings).settings
    assert terms.lifetimes() == (60.0 if isinstance(value, timedelta) else value,) * 2


async def test_what_a_property_says_is_known_at_the_handshake(enforce: Enforce) -> None:
    enforce()
    choosing = type("Choosing", (AsyncEcho,), {"throttle_ladder": property(lambda consumer: {"clsoe": 1})})
    with pytest.raises(InvalidSetting, match="did you mean 'close'"):
        await handshake(choosing.as_asgi())


def test_a_consumer_of_requests_is_no_socket() -> None:
    with pytest.raises(TypeError, match="Polled: ThrottledConsumerMixin limits WebSockets"):
        type("Polled", (ThrottledConsumerMixin, AsyncHttpConsumer), {})


def test_a_mixin_on_the_wrong_side_is_refused_at_import() -> None:
    with pytest.raises(TypeError, match="ThrottledConsumerMixin must stand left of AsyncConsumer"):
        type("Wrong", (AsyncWebsocketConsumer, ThrottledConsumerMixin), {})


async def test_what_is_no_socket_passes_the_middleware_untouched(enforce: Enforce) -> None:
    async def http(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    enforce(all={"rate": "1/min", "events": ["request", "connect", "message"], "key": "everyone"})
    app = ThrottleMiddleware(http, scope="chat")
    answers = [await HttpCommunicator(app, "GET", "/").get_response(timeout=20) for _ in range(3)]
    assert [answer["status"] for answer in answers] == [204] * 3


@pytest.mark.parametrize(
    ("ladder", "actions"),
    [
        (None, ["error"] * 9 + ["close"] * 2),
        ({"error": 3, "delay": 5, "close": 7}, ["drop"] * 2 + ["error"] * 2 + ["delay"] * 2 + ["close"] * 2),
        ({"error": 0, "close": 0}, ["drop"] * 50),
    ],
)
def test_a_ladder(settings: Any, ladder: Any, actions: list[str]) -> None:
    settings.DJANGO_THROTTLE = {}
    terms = SocketSettings("chat", **({"ladder": ladder} if ladder else {}))
    assert [terms.action(number) for number in range(1, len(actions) + 1)] == actions


def test_a_failure_of_the_store_is_no_violation(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {}
    failed = combine_outcomes((Outcome("own", "connection:x", False, 1, 0, 1.0, 0.0, Reason.STORE_FAILED),))
    ladder = Escalation()
    assert {ladder.action_for_refusal(failed, SocketSettings("chat").action) for _ in range(50)} == {"error"}
    assert ladder.violations == 0


async def waits() -> object:
    return {"type": "error"}


JUNK: dict[str, Any] = {
    "raises": lambda _: 1 / 0, "asynchronous": lambda _: waits(), "nothing": lambda _: None,
    "a set": lambda _: {1, 2}, "keys of no JSON": lambda _: {("a", 1): 2}, "no number": lambda _: float("nan"),
    "half a character": lambda _: "\ud800", "itself": lambda _: (loop := [], loop.append(loop))[0],
}  # fmt: skip


@pytest.mark.parametrize("hook", ["payload", "continuity"])
@pytest.mark.parametrize("junk", JUNK)
async def test_a_hook_that_fails_leaves_the_standard_frame(
    enforce: Enforce, junk: str, hook: str, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsaid(socket_settings, monkeypatch)
    enforce(own={**OWN, "events": ["message"]}, outward={**OWN, "events": ["send"]})
    line = await Line(ladder={"close": 3}, **{hook: JUNK[junk]}).open()
    line.send("in", "over")
    assert (await line.error())["code"] == "rate_limited" or hook == "continuity"
    await line.say({"type": "websocket.send", "text": "lost"})
    line.send("over", "over")
    assert (await line.closing())["code"] == 4429
    await line.ended()
    assert line.told("continuity_lost")[0]["lost"] == 1
    gc.collect()  # a coroutine that nobody has waited for would say so now
    assert caplog.text.count("the client gets the standard frame") == 1


@pytest.mark.parametrize("junk", [JUNK["raises"], lambda _: []])
async def test_a_frame_whose_kind_cannot_be_said_has_none(
    enforce: Enforce, junk: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsaid(socket_settings, monkeypatch)
    enforce(outward={**OWN, "events": ["send"]})
    async with Line(coalesce=junk) as line:
        for text in "abc":
            await line.say({"type": "websocket.send", "text": text})
        await line.say({"type": "websocket.close"})
        assert line.told("continuity_lost")[0]["lost"] == 2
    assert caplog.text.count("the frame is treated as a frame without a kind") == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({**OWN_MESSAGES, "events": ("request",)}, "takes the events message and send only"),
        ({**OWN_MESSAGES, "events": ("message", "connect")}, "takes the events message and send only"),
        ({**OWN_MESSAGES, "warn_at": (0.5,)}, "sends no warnings"),
        ({**OWN_MESSAGES, "on_store_failure": "deny"}, "without the store"),
        ({**OWN_MESSAGES, "algorithm": "damper", "rate": "5/s"}, "cannot have the key connection"),
        ({**OWN_MESSAGES, "algorithm": "fixed_window", "timezone": "Europe/Berlin", "rate": "5/day"}, "calendar"),
        ({**OWN_MESSAGES, "algorithm": "fixed_window", "rate": "5/month"}, "calendar"),
        ({**OWN_MESSAGES, "key": "user+connection"}, "not 'connection'"),
        ({"unit": "bytes", "events": ("connect",)}, "have bytes"),
        ({"unit": "bytes", "events": ("message", "publish")}, "have bytes"),
        ({"unit": "litres", "events": ("message",)}, "unit must be one of calls, bytes"),
    ],
)
def test_senseless_rules(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRule, match=reason):
        Rule.from_options("own", {"rate": "5/min", **options})


def test_only_an_open_socket_is_a_connection(rf: Any) -> None:
    assert RequestCaller(rf.get("/")).ident("connection") is None
    assert AsgiCaller({"type": "websocket"}).ident("connection") is None


def test_sizes() -> None:
    assert size_of({"text": "abc"}) == 3
    assert size_of({"text": "ü€", "bytes": None}) == 5
    assert size_of({"text": None, "bytes": b"\x00\x01"}) == 2
    assert size_of({}) == 0
    assert size_of({"text": "\ud800"}) == 3


CONSUMER, MIDDLEWARE, RULES, COST, ROOM, LADDER, COALESCE, _LOGIN, OPTIONS = pages.shown("sockets")
NAMES = (AsyncJsonWebsocketConsumer, ThrottledConsumerMixin, ThrottleMiddleware, URLRouter)


def run(code: str) -> Any:
    return pages.run(code, AuthMiddlewareStack=AuthMiddlewareStack, **{name.__name__: name for name in NAMES})


def test_rules_and_middleware() -> None:
    for code in (RULES, ROOM):
        for name, options in run(code)["DJANGO_THROTTLE"]["RULES"].items():
            assert Rule.from_options(name, options)
    app = run(MIDDLEWARE)["protected"]([path("chat", run(CONSUMER)["ChatConsumer"].as_asgi())])
    assert isinstance(app, OriginValidator)
    terms = run(OPTIONS)["strict"](None).settings
    terms.check()
    assert terms.lifetimes() == (600, 86400)


PRICES = [f'{{"symbol": "ABC", "price": {price}}}' for price in range(4)]


@pytest.mark.usefixtures("loop_clock")
@pytest.mark.parametrize(
    ("code", "name", "event", "sent", "keys"),
    [
        (COST, "DocumentConsumer", "message", ['{"type": "ping"}'] * 3, ["type", "type", "type"]),
        (LADDER, "StrictConsumer", "message", [f'{{"id": {number}}}' for number in range(4)], ["id", "re"]),
        (COALESCE, "TickerConsumer", "send", PRICES, ["price", "lost", "price"]),
    ],
    ids=["cost", "ladder", "coalesce"],
)
async def test_consumers(enforce: Enforce, code: str, name: str, event: str, sent: list[str], keys: list[str]) -> None:
    async def receive_json(self: Any, content: Any, **_: Any) -> None:
        await self.send_json(content)

    enforce(own={**OWN, "rate": "1/s" if event == "send" else "1/min", "events": [event]})
    consumer = type("Echo", (run(code)[name],), {"receive_json": receive_json})
    async with Line(consumer.as_asgi()) as line:
        line.send(*sent)
        await line.until(lambda: len(line.frames) == len(keys))
        assert all(key in frame for key, frame in zip(keys, line.frames, strict=True))
