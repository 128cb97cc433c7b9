"""Rules that sockets share: few questions, no frame too many, and nothing kept that is not used."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from redis import Redis

from django_throttle import rulebook
from django_throttle.channels import ThrottleMiddleware
from django_throttle.core import Rule
from django_throttle.core.commands import Charge
from django_throttle.limiter import Limiter
from django_throttle.rulebook import Snapshot
from django_throttle.sockets.prepaid import MAX_CALLS as MOST
from django_throttle.sockets.prepaid import PrepaidFrames, StoreCallLimit
from django_throttle.stores import RedisStore
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


def asked(redis: Redis) -> int:
    stats: Any = redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


class TestPace:
    def test_never_more_than_ten_in_any_second(self) -> None:
        """In these words, the documentation promises it."""
        pace, now, asked = StoreCallLimit(), 0.0, []
        for _ in range(95):
            now += pace.wait(now)
            pace.note(now)
            asked.append(now)
        assert asked[9] == 0.0, "the first ten go at once"
        assert most_in_a_second(asked) == 10

    async def test_of_one_socket_however_many_guards_stand_around_it(
        self, enforce: Live, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each with a rule of its own: they share the ten."""
        asked: list[float] = []
        note = StoreCallLimit.note

        def noted(pace: StoreCallLimit, now: float) -> None:
            asked.append(now)
            note(pace, now)

        monkeypatch.setattr(StoreCallLimit, "note", noted)
        enforce(
            outer={**CHAT, "rate": "1000000/h", "scopes": ["site"], "count_denied": True},
            inner={**CHAT, "rate": "1/h", "scopes": ["chat"], "count_denied": True},
            MAX_VIOLATIONS=0,
        )
        line = Line()
        line.app = ThrottleMiddleware(line.app, "site")
        await line.open()
        until = time.monotonic() + 1.2
        while time.monotonic() < until or len(asked) < 15:
            line.send(*["x"] * 5)
            await asyncio.sleep(0.02)
        assert most_in_a_second(asked) <= 10
        await line.close()


def most_in_a_second(asked: list[float]) -> int:
    return max(sum(1 for other in asked if at <= other < at + 1.0) for at in asked)


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
        assert questions <= MOST * (1 + seconds)
        await line.close()
        await becomes(lambda: used(store) == 1500)

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
        assert questions <= MOST * (1 + seconds)
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


class TestOneSocket:
    """An allowance by itself."""

    async def test_when_the_questions_are_used_up_a_frame_waits_for_the_next(
        self, enforce: Live, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_throttle.sockets.prepaid.PERIOD", 0.3)
        enforce(chat=CHAT)
        paced = StoreCallLimit()
        for _ in range(MOST):
            paced.note(time.monotonic())
        began = time.monotonic()
        decision, wait = await PrepaidFrames(paced).decide(charged(), (1,))
        assert (decision.allowed, wait) == (True, 0.0)
        assert time.monotonic() - began >= 0.29

    async def test_a_refusal_is_said_again_instead(self, enforce: Live) -> None:
        store = enforce(chat={**CHAT, "rate": "1/h", "count_denied": True})
        paced = StoreCallLimit()
        allowance = PrepaidFrames(paced)
        said = [(await allowance.decide(charged(), (1,)))[0].allowed for _ in range(50)]
        assert said == [True] + [False] * 49
        assert paced.wait(time.monotonic()) > 0, "each was asked for, as long as that could be"
        assert used(store) == 1

    async def test_several_at_once_are_each_charged(self, enforce: Live) -> None:
        store = enforce(chat={**CHAT, "rate": "5/h"})
        allowance = PrepaidFrames(StoreCallLimit())
        taken = await asyncio.gather(*(allowance.decide(charged(), (1,)) for _ in range(9)))
        assert sum(decision.allowed for decision, _ in taken) == 5
        assert used(store) == 5


def charged() -> tuple[Charge, ...]:
    return (Charge(rulebook.current().rules[0], IDENT, 1),)


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
        await becomes(lambda: used(store) == sum(len(texts(line)) for line in lines))

    async def test_what_is_left_goes_back_when_a_socket_rests(self, enforce: Live) -> None:
        store = enforce(chat=CHAT)
        line = await Line().open()
        line.send(*["x"] * 50)
        await line.until(lambda: len(texts(line)) == 50)
        await becomes(lambda: used(store) == 50)
        assert line.closed is None
        await line.close()

    async def test_bytes_of_different_size(self, enforce: Live) -> None:
        store = enforce(volume={**CHAT, "rate": "10000/h", "unit": "bytes"})
        line = await Line().open()
        sizes = [1, 700, 20, 3, 512, 1, 1, 90]
        line.send(*["x" * size for size in sizes])
        line.send("ü" * 10)
        await line.until(lambda: len(texts(line)) == 9)
        await becomes(lambda: used(store, "volume") == sum(sizes) + 20)
        line.send("y" * 9000)
        await line.until(lambda: line.told("error"))
        assert used(store, "volume") == sum(sizes) + 20
        line.send("z" * 8000)
        await line.until(lambda: len(texts(line)) == 10)
        await line.close()
        await becomes(lambda: used(store, "volume") == sum(sizes) + 8020)


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
        await becomes(lambda: used(store) == 20)


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
            await becomes(lambda: used(store) == 200)
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
        await becomes(lambda: used(store) <= 5)
        await line.close()
