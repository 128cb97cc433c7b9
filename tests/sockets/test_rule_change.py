"""Rules change while sockets are open: blocks close them, lower limits reach them, within a second."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_throttle import limiter, rulebook
from django_throttle.channels import ThrottleMiddleware
from django_throttle.conf import conf
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.core import Override, Rule
from django_throttle.core.commands import Charge
from django_throttle.limiter import decide_flow
from django_throttle.rulebook import Snapshot
from django_throttle.sockets import rule_change
from django_throttle.sockets.rule_change import LoweredLimit
from django_throttle.stores import RedisStore
from django_throttle.stores.base import run
from tests.clock import FrozenClock
from tests.consumers import AsyncEcho, held
from tests.doors import Enforce, enforcer
from tests.servers import slack
from tests.sockets.guarded import Line, Live, becomes, live_enforcer, texts

enforce = pytest.fixture(enforcer)
enforce_live = pytest.fixture(live_enforcer)
SOCKETS: dict[str, Any] = {"algorithm": "concurrency", "events": ("connection",), "key": "ip"}
Pin = Callable[..., None]


@pytest.fixture
def change() -> Iterator[Pin]:
    """Puts other rules in force, as an edit does; what was in force comes back."""
    before = rulebook.current() and rulebook.pin(None)
    rulebook.pin(before)

    def pin(*rules: Rule, overrides: tuple[Override, ...] = ()) -> None:
        rulebook.pin(Snapshot(rules, overrides=overrides))

    yield pin
    rulebook.pin(before)


def sockets(limit: int, **options: Any) -> Rule:
    return Rule("sockets", limit=limit, **{**SOCKETS, **options})


def blocked(subject: str = "ip:203.0.113.9", **options: Any) -> Override:
    return Override(subject=subject, effect="block", **options)


async def test_who_is_not_accepted_yet_is_not_warned(enforce: Enforce, change: Pin) -> None:
    """A frame before the accept is an error to every server."""
    enforce(sockets={**SOCKETS, "limit": 5})
    go_on = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await go_on.wait()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    first, second = await Line().open(), Line(ThrottleMiddleware(slow, "chat"))
    opening = asyncio.ensure_future(second.open())
    await becomes(lambda: len(open_sockets) == 2)
    change(sockets(1))
    await asyncio.sleep(0.1)
    assert second.sent == []
    go_on.set()
    await opening
    assert [event["type"] for event in second.sent] == ["websocket.accept"]
    await first.close()
    await second.close()


class TestBlocks:
    async def test_who_is_blocked_is_closed_within_a_second(self, enforce: Enforce, change: Pin) -> None:
        store = enforce(sockets={**SOCKETS, "limit": 5})
        line, other = await Line().open(), await Line(address="198.51.100.7").open()
        began = time.monotonic()
        change(sockets(5), overrides=(blocked(),))
        await line.until(lambda: line.closed)
        seconds = time.monotonic() - began
        print(f"closed {seconds * 1000:.0f} ms after the block")
        assert seconds <= slack(1.0)
        assert line.closed == {"type": "websocket.close", "code": 4403, "reason": "blocked"}
        told = line.told("error")[0]
        assert (told["code"], told["retry_after"], told["detail"]) == ("blocked", None, "Access is blocked.")
        assert held(store) == 1
        other.send("hello")
        await other.until(lambda: texts(other))
        await other.close()

    async def test_a_block_that_comes_while_a_handshake_waits_reaches_it_too(
        self, enforce: Enforce, change: Pin, monkeypatch: Any
    ) -> None:
        """It was decided by the rules before, and nobody saw it then."""
        enforce()
        decide, asked, go_on = limiter.adecide, asyncio.Event(), asyncio.Event()

        async def slow(facts: Any, **options: Any) -> Any:
            decision = await decide(facts, **options)
            asked.set()
            await go_on.wait()
            return decision

        monkeypatch.setattr(limiter, "adecide", slow)
        line = Line()
        opening = asyncio.ensure_future(line.open())
        await asked.wait()
        change(overrides=(blocked(),))
        go_on.set()
        await opening
        await line.until(lambda: line.closed)
        assert line.closed is not None
        await line.until(lambda: line.task is not None and line.task.done())

    async def test_a_block_with_an_end_says_when(self, enforce: Enforce, change: Pin) -> None:
        enforce()
        line = await Line().open()
        change(overrides=(blocked(until=time.time() + 60),))
        await line.until(lambda: line.closed)
        assert 55 < line.told("error")[0]["retry_after"] <= 60
        assert line.closed["reason"].startswith("blocked; retry_after=")

    async def test_a_block_of_messages_refuses_messages(self, enforce: Enforce, change: Pin) -> None:
        enforce()
        line = await Line().open()
        frames = Rule("frames", "100/min", events=("message",), key="ip")
        change(frames, overrides=(blocked(rules=("frames",)),))
        line.send("x")
        await line.until(lambda: line.told("error"))
        assert line.told("error")[0]["code"] == "blocked"
        assert (texts(line), line.closed) == ([], None)
        line.send(*["x"] * 9)
        await line.until(lambda: line.closed)
        assert line.closed["code"] == 4403

    async def test_a_site_that_only_records_closes_nobody(self, enforce: Enforce, change: Pin) -> None:
        enforce(SHADOW=True)
        line = await Line().open()
        change(overrides=(blocked(),))
        line.send("x")
        await line.until(lambda: texts(line))
        assert line.closed is None
        await line.close()

    async def test_who_cannot_be_judged_keeps_nobody_from_being(
        self, enforce: Enforce, change: Pin, monkeypatch: Any, caplog: Any
    ) -> None:
        enforce()
        first, second = await Line().open(), await Line().open()
        (one, _) = open_sockets.everyone()
        monkeypatch.setattr(type(one.who), "ident", _failing_for(one.who, type(one.who).ident))
        change(overrides=(blocked(),))
        await second.until(lambda: second.closed)
        assert first.closed is None
        assert "were not applied to an open socket" in caplog.text
        monkeypatch.undo()
        await first.close()


def _failing_for(who: Any, ident: Any) -> Any:
    def fail(self: Any, key: str) -> Any:
        if self is who:
            raise ZeroDivisionError
        return ident(self, key)

    return fail


class TestLimits:
    async def test_a_new_rate_holds_from_the_next_message_on(self, enforce: Enforce, change: Pin) -> None:
        enforce()
        line = await Line().open()
        line.send(*"abc")
        await line.until(lambda: len(texts(line)) == 3)
        change(Rule("own", "1/min", events=("message",), key="connection"))
        line.send(*"de")
        await line.until(lambda: line.told("error"))
        assert texts(line) == [*"abcd"]
        change(Rule("own", "2/min", events=("message",), key="connection"))
        line.send("e")
        await line.until(lambda: len(texts(line)) == 5)
        await line.close()

    @pytest.mark.parametrize("enforce", ["memory", "redis"], indirect=True)
    async def test_the_newest_beyond_a_lower_limit_are_closed(
        self, enforce: Enforce, change: Pin, clock: FrozenClock
    ) -> None:
        store = enforce(sockets={**SOCKETS, "limit": 5})
        lines = []
        for second in range(5):
            clock.to(second)
            lines.append(await Line(on_rule_change="close").open())
        other = await Line(address="198.51.100.7", on_rule_change="close").open()
        change(sockets(2))
        await lines[2].until(lambda: all(line.closed for line in lines[2:]))
        assert [line.closed for line in lines[:2]] == [None, None]
        assert {line.closed["code"] for line in lines[2:]} == {4430}
        told = lines[4].told("error")[0]
        assert (told["code"], told["rule"], told["limit"], told["remaining"]) == ("connection_limit", "sockets", 2, 0)
        await becomes(lambda: held(store) == 3)
        for line in (*lines[:2], other):
            assert line.closed is None
            await line.close()

    @pytest.mark.parametrize("enforce", ["memory", "redis"], indirect=True)
    async def test_where_newcomers_close_old_ones_the_oldest_go(
        self, enforce: Enforce, change: Pin, clock: FrozenClock
    ) -> None:
        enforce(sockets={**SOCKETS, "limit": 4, "at_limit": "evict_oldest"})
        lines = []
        for second in range(4):
            clock.to(second)
            lines.append(await Line(on_rule_change="close").open())
        change(sockets(1, at_limit="evict_oldest"))
        await lines[0].until(lambda: all(line.closed for line in lines[:3]))
        assert lines[3].closed is None
        await lines[3].close()

    async def test_of_all_processes_together(
        self, enforce_live: Live, redis_url: str, change: Pin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What another process opened before and after counts: the oldest stay, wherever they are."""
        enforce_live(sockets={**SOCKETS, "limit": 6})
        elsewhere = RedisStore(redis_url, secret=conf().KEY_SECRET, deadline=5.0)
        rule = rulebook.current().rules[0]

        def take_elsewhere() -> Any:
            return run(decide_flow((Charge(rule, "ip:203.0.113.9", 1),), elsewhere, socket=True), elsewhere).lease

        lines = [await Line(on_rule_change="close").open()]
        leases = [await asyncio.to_thread(take_elsewhere)]
        lines += [await Line(on_rule_change="close").open() for _ in range(2)]
        leases.append(await asyncio.to_thread(take_elsewhere))
        change(sockets(3))
        await lines[2].until(lambda: lines[2].closed)
        assert [line.closed is None for line in lines] == [True, True, False]
        hold = LoweredLimit(rule.id, "ip:203.0.113.9", "sockets", 3)
        monkeypatch.setattr(rule_change, "get_store", lambda: elsewhere)
        assert rule_change.excess_leases([hold]) == {hold: frozenset([leases[1].id])}
        monkeypatch.undo()
        for line in lines[:2]:
            await line.close()

    async def test_or_they_are_warned(self, enforce: Enforce, change: Pin) -> None:
        enforce(sockets={**SOCKETS, "limit": 3})
        lines = [await Line().open() for _ in range(3)]
        change(sockets(2))
        await lines[2].until(lambda: lines[2].told("error"))
        assert [len(line.told("error")) for line in lines] == [0, 0, 1]
        assert [line.closed for line in lines] == [None] * 3
        for line in lines:
            await line.close()

    async def test_a_consumer_that_says_nothing_has_its_clients_warned(self, enforce: Enforce, change: Pin) -> None:
        class Closing(AsyncEcho):
            throttle_on_rule_change = "close"

        enforce(sockets={**SOCKETS, "limit": 2})
        for consumer, closed in ((AsyncEcho, None), (Closing, 4430)):
            lines = [await Line(consumer.as_asgi()).open() for _ in range(2)]
            change(sockets(1))
            await lines[1].until(lambda line=lines[1]: line.told("error"))
            if closed:
                await lines[1].until(lambda line=lines[1]: line.closed)
            assert [lines[0].closed, lines[1].closed and lines[1].closed["code"]] == [None, closed]
            for line in lines:
                await line.close()
            change(sockets(2))

    async def test_or_nothing_happens(self, enforce: Enforce, change: Pin) -> None:
        enforce(sockets={**SOCKETS, "limit": 2})
        lines = [await Line(on_rule_change="ignore").open() for _ in range(2)]
        old, new = rulebook.current(), Snapshot([sockets(1)])
        await rule_change.apply(open_sockets.everyone(), old, new)  # type: ignore[arg-type]
        assert [(line.closed, line.told("error")) for line in lines] == [(None, [])] * 2
        for line in lines:
            await line.close()

    async def test_a_higher_limit_and_one_that_only_records_touch_nobody(self, enforce: Enforce, change: Pin) -> None:
        enforce(sockets={**SOCKETS, "limit": 2})
        lines = [await Line(on_rule_change="close").open() for _ in range(2)]
        old = rulebook.current()
        for new in (sockets(3), sockets(1, action="shadow"), sockets(1, key="user")):
            await rule_change.apply(open_sockets.everyone(), old, Snapshot([new]))  # type: ignore[arg-type]
        await rule_change.apply(open_sockets.everyone(), None, Snapshot([sockets(1)]))  # type: ignore[arg-type]
        assert [line.closed for line in lines] == [None] * 2
        for line in lines:
            await line.close()

    async def test_ten_thousand_sockets_are_looked_at_a_few_at_a_time(self, enforce: Enforce, change: Pin) -> None:
        enforce(sockets={**SOCKETS, "limit": 10_000})
        lines = [await Line(address=f"10.0.{n // 250}.{n % 250}").open() for n in range(1000)]
        gc.collect()  # what all tests before have left is not looked through meanwhile
        longest, last = 0.0, time.thread_time()  # of its own work, whatever else the machine does
        change(sockets(9_000), overrides=(blocked("ip:10.0.3.0/24"),))
        began = time.monotonic()
        while sum(line.closed is not None for line in lines) < 250:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now
        seconds = time.monotonic() - began
        print(f"1,000 sockets, 250 closed in {seconds:.2f} s; the loop stood still for {longest * 1000:.1f} ms")
        assert longest < slack(0.05)
        for line in lines:
            if not line.closed:
                await line.close()
