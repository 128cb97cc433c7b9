"""The options of consumers and middleware: nonsense is refused where it is written, and hooks that fail do no harm."""

from __future__ import annotations

import gc
from collections import UserDict
from datetime import timedelta
from typing import Any

import pytest
from channels.consumer import AsyncConsumer
from channels.exceptions import StopConsumer
from channels.generic.http import AsyncHttpConsumer
from channels.generic.websocket import AsyncWebsocketConsumer

from django_throttle.channels import ThrottledConsumerMixin, ThrottleMiddleware
from django_throttle.core import Decision, Outcome, Reason
from django_throttle.core.decision import conclude
from django_throttle.exceptions import InvalidSetting
from django_throttle.sockets import settings as socket_settings
from django_throttle.sockets.error_frames import ERROR_BURST, Escalation
from django_throttle.sockets.settings import OPTIONS, SocketSettings, consumer_settings, misspelt_options
from tests.consumers import TWO_SOCKETS, AsyncEcho, handshake
from tests.doors import Enforce
from tests.inside import unsaid
from tests.sockets.guarded import Line

ATTRIBUTES = {option: name for name, option in OPTIONS.items()}
OWN = {"rate": "1/min", "key": "connection", "algorithm": "gcra"}


async def app(scope: Any, receive: Any, send: Any) -> None: ...


async def asynchronous(_: Any) -> None: ...


WRONG: list[tuple[str, Any, str]] = [
    ("scope", ["chat"], "must be a name, not \\['chat'\\]"),
    ("refuse", "frmae", "one of http, frame, not 'frmae'; did you mean 'frame'"),
    ("refuse", ["frame"], "one of http, frame"),
    ("answers", "onec", "answers must be one of each, once, not 'onec'"),
    ("payload", {"error": "slow down"}, "payload must be a function"),
    ("payload", asynchronous, "must not be asynchronous"),
    ("coalesce", "symbol", "coalesce must be a function"),
    ("cost", -1, "cost must be a whole number of 0 or more, or a function, not -1"),
    ("cost", 0.5, "not 0.5"),
    ("cost", asynchronous, "cost must not be asynchronous"),
    ("continuity", asynchronous, "continuity must not be asynchronous"),
    ("close_codes", {"rate_limit": 4000}, "did you mean 'rate_limited'"),
    ("close_codes", {"rate_limited": 2999}, "from 3000 to 4999"),
    ("close_codes", {"rate_limited": 5000}, "from 3000 to 4999"),
    ("close_codes", {"rate_limited": "4429"}, "from 3000 to 4999"),
    ("close_codes", {4429: 4000}, "the reason of a close code must be one of"),
    ("close_codes", None, "must be a dictionary"),
    ("ladder", {"clsoe": 3}, "did you mean 'close'"),
    ("ladder", {"close": -1}, "whole numbers"),
    ("ladder", {"close": True}, "whole numbers"),
    ("ladder", ["close"], "a ladder must be a dictionary"),
    ("idle_timeout", -1, "idle_timeout must be a number of seconds, 0 for never, not -1"),
    ("idle_timeout", float("nan"), "not nan"),
    ("idle_timeout", "10", "not '10'"),
    ("idle_timeout", True, "not True"),
    ("max_age", timedelta(seconds=-1), "max_age must be a number of seconds"),
    ("on_rule_change", "shrug", "one of ignore, warn, close"),
    ("on_rule_change", None, "one of ignore, warn, close"),
]


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
    terms = ThrottleMiddleware(app, idle_timeout=value, max_age=value, **mappings).settings
    assert terms.lifetimes() == (60.0 if isinstance(value, timedelta) else value,) * 2


async def test_what_a_property_says_is_known_at_the_handshake(enforce: Enforce) -> None:
    enforce()
    choosing = type("Choosing", (AsyncEcho,), {"throttle_ladder": property(lambda consumer: {"clsoe": 1})})
    with pytest.raises(InvalidSetting, match="did you mean 'close'"):
        await handshake(choosing.as_asgi())


def test_a_consumer_of_requests_is_no_socket() -> None:
    with pytest.raises(TypeError, match="Polled: ThrottledConsumerMixin limits sockets"):
        type("Polled", (ThrottledConsumerMixin, AsyncHttpConsumer), {})


@pytest.mark.parametrize("base", [AsyncWebsocketConsumer, AsyncConsumer])
async def test_a_mixin_of_a_site_and_a_bare_consumer_are_fine(enforce: Enforce, base: type) -> None:
    async def accept(self: Any, event: Any) -> None:
        await self.send({"type": "websocket.accept"})

    async def end(self: Any, event: Any) -> None:
        raise StopConsumer

    bare = {"websocket_connect": accept, "websocket_disconnect": end}
    mixin = type("Mixin", (ThrottledConsumerMixin,), {"throttle_scope": "chat"})
    consumer = type("Chat", (mixin, base), bare if base is AsyncConsumer else {})
    enforce(sockets={**TWO_SOCKETS, "limit": 1, "scopes": ["chat"]})
    async with Line(consumer.as_asgi()):
        assert (await Line(consumer.as_asgi()).open()).closed["code"] == 4430


def test_misspelt_attributes() -> None:
    misspelt = {
        "throttle_laddder": "throttle_ladder",
        "throttle_refuse": "refuse",
        "throttle_payload": "throttle_error_payload",
        "throttle_idle_timout": "throttle_idle_timeout",
    }
    others = {"throttle_ladder": {}, "throttle_channel": "a site's own", "throttled_by": "a site's own", "laddder": 1}
    assert dict(misspelt_options(type("Misspelt", (AsyncEcho,), {**misspelt, **others}))) == misspelt


def test_a_consumer_has_the_options_of_its_class_and_its_own(monkeypatch: Any) -> None:
    def terms(consumer: Any = None) -> SocketSettings:
        return consumer_settings(consumer or AsyncEcho(), ThrottledConsumerMixin)

    assert terms() is terms()
    own = AsyncEcho()
    for own.throttle_cost in (lambda message: 7, lambda message: 8):  # type: ignore[method-assign]
        assert terms(own).cost is own.throttle_cost
    assert terms().cost == 1
    codes = {"idle": 4001}
    monkeypatch.setattr(AsyncEcho, "throttle_close_codes", codes)
    assert terms().close_codes == codes
    codes["idle"] = 7  # changed in place
    for _ in range(2):
        with pytest.raises(InvalidSetting, match="close code"):
            terms()


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


def refused(retry_after: float, reason: Reason = Reason.EXCEEDED) -> Decision:
    return conclude((Outcome("own", "connection:x", False, 1, 0, retry_after, 0.0, reason),))


def test_a_failure_of_the_store_is_no_violation_and_frames_are_few(settings: Any, monkeypatch: Any) -> None:
    """Even where streaks are short."""
    settings.DJANGO_THROTTLE = {}
    monkeypatch.setattr("django_throttle.sockets.error_frames.monotonic", lambda: 1000.0)
    ladder, ours, sent = Escalation(), refused(1.0, Reason.STORE_FAILED), 0
    assert {ladder.refused(ours, SocketSettings("chat").action) for _ in range(50)} == {"error"}
    assert ladder.violations == 0
    for _ in range(1000):
        ladder.reset()
        sent += ladder.may_send_error(refused(0.001))
    assert sent == ERROR_BURST


async def waits() -> object:
    return {"type": "error"}


JUNK: dict[str, Any] = {
    "raises": lambda _: 1 / 0,
    "asynchronous": lambda _: waits(),
    "nothing": lambda _: None,
    "a set": lambda _: {1, 2},
    "keys of no JSON": lambda _: {("a", 1): 2},
    "no number": lambda _: float("nan"),
    "half a character": lambda _: "\ud800",
    "itself": lambda _: (loop := [], loop.append(loop))[0],
}


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
    assert caplog.text.count("the frame is taken to be of no kind") == 1
