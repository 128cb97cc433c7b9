"""Rules that sockets share: few questions, no frame too many, and nothing kept that is not used."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from redis import Redis

from django_throttle import rulebook
from django_throttle.channels import ThrottleMiddleware
from django_throttle.conf import conf
from django_throttle.core import Rule
from django_throttle.core.commands import Charge
from django_throttle.core.prepaid import MOST_ASKED, Claim
from django_throttle.limiter import Limiter
from django_throttle.prepaid import decide_bought, give_back
from django_throttle.rulebook import Snapshot
from django_throttle.stores import RedisStore
from django_throttle.stores.base import arun
from tests.inside import buys
from tests.servers import slack
from tests.sockets.guarded import Line, Live, becomes, live_enforcer, texts

enforce = pytest.fixture(live_enforcer)
IDENT = "ip:203.0.113.9"
CHAT = {"rate": "1000/h", "events": ["message"], "key": "ip", "algorithm": "fixed_window"}


def used(store: RedisStore, name: str = "chat", ident: str = IDENT) -> int:
    """What Redis has counted under a rule."""
    rule = next(rule for rule in rulebook.current().rules if rule.name == name)
    decision = Limiter([rule], store).peek(ident)
    assert decision.limit is not None and decision.remaining is not None
    return decision.limit - decision.remaining


def settled(store: RedisStore, name: str = "chat") -> int:
    """The same once the agent has given back what may be spent no longer."""
    give_back(store)
    return used(store, name)


def asked(redis: Redis) -> int:
    stats: Any = redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


class TestQuestions:
    async def test_a_stream_within_its_limit_asks_rarely_and_counts_exactly(
        self, enforce: Live, redis_server: Any
    ) -> None:
        store = enforce(chat={**CHAT, "rate": "1000000/h"})
        line = await Line().open()
        with redis_server.client() as redis:
            before, began = asked(redis), time.monotonic()
            for n in range(1500):
                line.send(f"{n}")
                if n % 10 == 0:
                    await asyncio.sleep(0.01)
            await line.until(lambda: len(texts(line)) == 1500)
            seconds, questions = time.monotonic() - began, asked(redis) - before
        print(f"1,500 frames in {seconds:.2f} s: {questions} questions")
        assert questions <= MOST_ASKED * (1 + seconds)
        await line.close()
        await becomes(lambda: settled(store) == 1500)

    async def test_a_flood_over_the_limit_asks_ten_times_a_second_at_most(
        self, enforce: Live, redis_server: Any
    ) -> None:
        store = enforce(chat={**CHAT, "rate": "200/h"}, MAX_VIOLATIONS=0)
        line = await Line().open()
        with redis_server.client() as redis:
            before, began = asked(redis), time.monotonic()
            line.send(*map(str, range(10_000)))
            while time.monotonic() - began < 1.5 or len(texts(line)) < 200:
                line.send(*map(str, range(100)))
                await asyncio.sleep(0.02)
            seconds, questions = time.monotonic() - began, asked(redis) - before
        print(f"over 10,000 frames in {seconds:.2f} s: {questions} questions")
        assert questions <= MOST_ASKED * (1 + seconds)
        assert len(texts(line)) == 200 == used(store)
        await line.close()

    async def test_small_limits_are_asked_for_frame_by_frame(self, enforce: Live) -> None:
        """A second socket finds what the first has not used."""
        store = enforce(chat={**CHAT, "rate": "5/h"})
        first, second = await Line().open(), await Line().open()
        first.send("1", "2", "3")
        await first.until(lambda: len(texts(first)) == 3)
        second.send("4", "5", "6")
        await second.until(lambda: second.told("error"))
        assert texts(second) == ["4", "5"]
        assert used(store) == 5
        for line in (first, second):
            await line.close()


class TestRulesThatCountRefusals:
    """A purchase larger than what is left would count as a refused call."""

    @pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "gcra", "token_bucket"])
    async def test_frames_use_all_that_calls_elsewhere_have_left(self, enforce: Live, algorithm: str) -> None:
        store = enforce(chat={**CHAT, "rate": "100/h", "algorithm": algorithm, "count_denied": True}, MAX_VIOLATIONS=0)
        (rule,) = rulebook.current().rules
        elsewhere = Limiter([rule], store)
        async with Line() as line:
            line.send(*map(str, range(6)))
            await line.received(6)
            assert elsewhere.acquire(IDENT, cost=75).allowed
            line.send(*map(str, range(6, 25)))
            await line.received(25)
            assert used(store) == 100
            line.send("one more")
            await line.error()
            assert len(texts(line)) == 25

    async def test_beside_another_rule_each_frame_is_charged_once(self, enforce: Live) -> None:
        """Whose units are bought ahead, and refused where they are too many."""
        counting = {**CHAT, "rate": "1000/h", "count_denied": True}
        store = enforce(chat=counting, small={**CHAT, "rate": "40/h"}, MAX_VIOLATIONS=0)
        small = next(rule for rule in rulebook.current().rules if rule.name == "small")
        async with Line() as line:
            line.send(*map(str, range(6)))
            await line.received(6)
            assert Limiter([small], store).acquire(IDENT, cost=20).allowed
            line.send(*map(str, range(6, 20)))
            await line.received(20)
        assert (used(store), used(store, "small")) == (20, 40)


class TestTheCap:
    @pytest.mark.parametrize("algorithm", ["fixed_window", "gcra"])
    async def test_many_sockets_of_one_ident_get_exactly_the_limit(self, enforce: Live, algorithm: str) -> None:
        store = enforce(chat={**CHAT, "rate": "600/day", "algorithm": algorithm}, MAX_VIOLATIONS=0)
        lines = [await Line().open() for _ in range(6)]

        before, passed = -1, [0]
        while sum(passed) > before:  # with rests between, so that what others held has come back
            before = sum(passed)
            for line in lines:
                line.send(*["x"] * 400)
            await asyncio.sleep(0.7)
            passed = [len(texts(line)) for line in lines]
        print(f"{algorithm}: {passed} = {sum(passed)}, counted {used(store)}")
        assert sum(passed) == 600
        for line in lines:
            await line.close()

    @pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_log"])
    async def test_two_processes_get_exactly_the_limit(self, enforce: Live, redis_url: str, algorithm: str) -> None:
        store = enforce(chat={**CHAT, "rate": "300/day", "algorithm": algorithm})
        other = RedisStore(redis_url, secret=conf().KEY_SECRET, deadline=5.0)
        charges, passed = (Charge(rulebook.current().rules[0], IDENT, 1),), 0
        for one in (store, other) * 2:
            for _ in range(200):
                passed += (await arun(decide_bought(Claim(charges, waits=True), one), one)).allowed
                assert passed <= used(store) <= 300
            give_back(one, everything=True)
        assert passed == 300 == used(store)

    async def test_never_more_is_let_through_than_was_charged(self, enforce: Live) -> None:
        store = enforce(chat=CHAT)
        lines = [await Line().open() for _ in range(4)]
        for n in range(30):
            for line in lines:
                line.send(*["x"] * (n % 7))
            await asyncio.sleep(0.01)
            assert sum(len(texts(line)) for line in lines) <= used(store)
        for line in lines:
            await line.close()
        await becomes(lambda: settled(store) == sum(len(texts(line)) for line in lines))

    async def test_what_is_left_goes_back_when_a_socket_rests(self, enforce: Live) -> None:
        store = enforce(chat=CHAT)
        line = await Line().open()
        line.send(*["x"] * 50)
        await line.until(lambda: len(texts(line)) == 50)
        await becomes(lambda: settled(store) == 50)
        assert line.closed is None
        await line.close()

    async def test_bytes_of_different_size(self, enforce: Live) -> None:
        store = enforce(volume={**CHAT, "rate": "10000/h", "unit": "bytes"})
        line = await Line().open()
        sizes = [1, 700, 20, 3, 512, 1, 1, 90]
        line.send(*["x" * size for size in sizes])
        line.send("ü" * 10)
        await line.until(lambda: len(texts(line)) == 9)
        await becomes(lambda: settled(store, "volume") == sum(sizes) + 20)
        line.send("y" * 9000)
        await line.until(lambda: line.told("error"))
        assert used(store, "volume") == sum(sizes) + 20
        line.send("z" * 8000)
        await line.until(lambda: len(texts(line)) == 10)
        await line.close()
        await becomes(lambda: settled(store, "volume") == sum(sizes) + 8020)


class TestCancellation:
    async def test_a_frame_whose_decision_was_abandoned_is_charged_once(self, enforce: Live) -> None:
        """An application with a timeout around receive gets the frame next time, by what was bought for it."""
        store = enforce(chat=CHAT)
        got: list[str] = []

        async def impatient(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            while True:
                try:
                    event = await asyncio.wait_for(receive(), 0.0005)
                except TimeoutError:
                    continue
                if event["type"] == "websocket.disconnect":
                    return
                got.append(event["text"])
                line.news.set()

        line = await Line(ThrottleMiddleware(impatient, "chat")).open()
        for n in range(20):
            line.send(f"{n}")
            await line.until(lambda n=n: len(got) == n + 1)
        assert got == [f"{n}" for n in range(20)]
        await line.close()
        await becomes(lambda: settled(store) == 20)


class TestRuleChanges:
    async def test_what_was_bought_under_the_old_rule_goes_back(self, enforce: Live) -> None:
        store = enforce(chat={**CHAT, "rate": "100000/h"})
        line = await Line().open()
        for _ in range(4):
            line.send(*["x"] * 50)
            await asyncio.sleep(0.05)
        await line.until(lambda: len(texts(line)) == 200)
        assert used(store) > 200, "some were bought in advance"
        rules = [Rule("chat", "210/h", events=("message",), key="ip", algorithm="fixed_window")]
        before = rulebook.pin(Snapshot(rules))
        try:
            await becomes(lambda: settled(store) == 200)
            line.send(*["y"] * 20)
            await line.until(lambda: line.told("error"))
            assert len(texts(line)) == 210
        finally:
            rulebook.pin(before)
            await line.close()


class TestDelays:
    async def test_a_shared_queue_paces_what_it_lets_through(self, enforce: Live) -> None:
        enforce(chat={**CHAT, "rate": "40/s", "algorithm": "leaky_bucket", "action": "delay", "max_delay": 2})
        line = await Line().open()
        began = time.monotonic()
        line.send(*["x"] * 40)
        await line.until(lambda: len(texts(line)) == 40)
        seconds = time.monotonic() - began
        print(f"40 frames at 40/s took {seconds:.2f} s")
        assert 0.9 <= seconds <= 1.0 + slack(1.0)
        await line.close()

    async def test_what_would_wait_for_longer_than_two_seconds_is_refused_and_not_charged(self, enforce: Live) -> None:
        store = enforce(chat={**CHAT, "rate": "1/s", "burst": 10, "algorithm": "leaky_bucket", "action": "delay"})
        Limiter([rulebook.current().rules[0]], store).acquire(IDENT, cost=5)
        line = await Line().open()
        line.send("x")
        await line.until(lambda: line.told("error"))
        told = line.told("error")[0]
        assert 0 < told["retry_after"] <= 3
        assert texts(line) == []
        await becomes(lambda: settled(store) <= 5)
        await line.close()

    @pytest.mark.parametrize("size", [1, 5])
    async def test_frames_that_wait_as_the_socket_ends_give_their_turns_back(
        self, enforce: Live, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        buys(size, monkeypatch)
        store = enforce(chat={**CHAT, "rate": "1/s", "burst": 50, "algorithm": "leaky_bucket", "action": "delay"})
        line = await Line().open()
        line.send("first", "second", "third")
        await line.until(lambda: texts(line) == ["first"])
        await becomes(lambda: settled(store) >= 2)
        assert line.task is not None
        line.task.cancel()
        await asyncio.wait({line.task})
        await becomes(lambda: settled(store) == 1)

    async def test_each_socket_of_a_loop_waits_for_its_own_frames_in_their_order(self, enforce: Live) -> None:
        enforce(
            slow={**CHAT, "rate": "10/s", "burst": 40, "algorithm": "leaky_bucket", "action": "delay", "scopes": ["a"]}
        )
        slow, quick = await Line(scope="a").open(), await Line(scope="b").open()
        began = time.monotonic()
        slow.send(*map(str, range(12)))
        late = 0.0
        while len(texts(slow)) < 12:
            sent = time.monotonic()
            seen = len(texts(quick))
            quick.send("x")
            await quick.until(lambda seen=seen: len(texts(quick)) > seen)  # type: ignore[misc]
            late = max(late, time.monotonic() - sent)
            await asyncio.sleep(0.01)
        assert time.monotonic() - began >= 1.1
        assert texts(slow) == [*map(str, range(12))]
        assert late <= slack(0.05), "none of another socket waits"
        for line in (slow, quick):
            await line.close()

    async def test_handshakes_wait_for_their_turn(self, enforce: Live) -> None:
        enforce(knocks={**CHAT, "events": ["connect"], "rate": "20/s", "algorithm": "leaky_bucket", "action": "delay"})
        began = time.monotonic()
        lines = await asyncio.gather(*(Line().open() for _ in range(7)))
        assert 0.3 <= time.monotonic() - began <= 0.3 + slack(1.0)
        assert [line.closed for line in lines] == [None] * 7
        for line in lines:
            await line.close()

    async def test_a_client_that_leaves_before_its_handshake_has_its_turn(self, enforce: Live) -> None:
        slow = {**CHAT, "events": ["connect"], "rate": "1/h", "burst": 9, "algorithm": "leaky_bucket"}
        store = enforce(knocks={**slow, "action": "delay"})
        first = await Line().open()
        waiting = Line()
        opening = asyncio.ensure_future(waiting.open())
        await becomes(lambda: settled(store, "knocks") == 2)
        assert waiting.task is not None
        waiting.task.cancel()
        await asyncio.wait({waiting.task})
        await becomes(lambda: settled(store, "knocks") == 1)
        opening.cancel()
        await first.close()
