"""Answers to refused messages: one for each, by the message, in the shape of the subprotocol."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import strawberry
from strawberry.channels import GraphQLWSConsumer

from django_throttle.channels import ThrottledConsumerMixin
from django_throttle.core import Rule
from django_throttle.testing import assert_throttled
from django_throttle.websockets.error_frames import Close
from tests.consumers import TWO_SOCKETS, opened
from tests.doors import Enforce
from tests.websockets.guarded import Line, becomes, only

OWN = {"rate": "2/min", "events": ["message"], "key": "connection", "algorithm": "gcra"}
# By subprotocol: the client's words for an operation and its end, and the server's for a result.
WORDS = {"graphql-transport-ws": ("subscribe", "complete", "next"), "graphql-ws": ("start", "stop", "data")}
CODES = {"graphql-transport-ws": 4425, "graphql-ws": 4429}
GRAPHQL = pytest.mark.parametrize("protocol", WORDS)
news: list[asyncio.Queue[str]] = []


@strawberry.type
class Query:
    hello: str = "world"


@strawberry.type
class Subscription:
    @strawberry.subscription
    async def news(self) -> AsyncIterator[str]:
        news.append(queue := asyncio.Queue())
        try:
            while True:
                yield await queue.get()
        finally:
            news.remove(queue)


class GraphQL(ThrottledConsumerMixin, GraphQLWSConsumer[None, None]):
    throttle_scope = "graphql"
    refuse = "frame"


def graphql(**attributes: Any) -> Any:
    consumer = type("Consumer", (GraphQL,), attributes)
    return consumer.as_asgi(schema=strawberry.Schema(query=Query, subscription=Subscription), keep_alive=False)


async def subscribed(protocol: str, **attributes: Any) -> Any:
    """A client with one running subscription, which has cost two messages."""
    client = await opened(graphql(**attributes), subprotocols=[protocol])
    await client.send_json_to({"type": "connection_init"})
    assert (await client.receive_json_from())["type"] == "connection_ack"
    await client.send_json_to(operation(protocol, "1"))
    await becomes(lambda: news)
    return client


def operation(protocol: str, number: str) -> dict[str, Any]:
    return {"id": number, "type": WORDS[protocol][0], "payload": {"query": "subscription { news }"}}


def error_of(frame: dict[str, Any]) -> dict[str, Any]:
    payload = frame["payload"]
    return payload[0] if isinstance(payload, list) else payload


async def closing(client: Any) -> int:
    while (event := await client.receive_output())["type"] != "websocket.close":
        pass
    await client.wait()
    return int(event["code"])


@GRAPHQL
class TestGraphQL:
    async def test_a_refused_operation_ends_with_an_error_and_the_others_go_on(
        self, enforce: Enforce, protocol: str
    ) -> None:
        enforce(own=OWN)
        client = await subscribed(protocol)
        await client.send_json_to(operation(protocol, "2"))
        error = await client.receive_json_from()
        assert (error["id"], error["type"]) == ("2", "error")
        assert_throttled([{"type": WORDS[protocol][2], "id": "1", "payload": {}}, error], after=1, rule="own")
        refusal = error_of(error)
        assert refusal["message"].startswith("Rate limit exceeded. Try again in ")
        assert refusal["extensions"] | {"reference": "", "retry_after": 0} == {
            "code": "rate_limited", "rule": "own", "limit": 2, "remaining": 0, "window": 60, "retry_after": 0,
            "reference": "",
        }  # fmt: skip
        news[0].put_nowait("still running")
        frame = {"id": "1", "type": WORDS[protocol][2], "payload": {"data": {"news": "still running"}}}
        assert (await client.receive_json_from()) == frame
        await client.disconnect()

    async def test_refused_ends_are_passed_on_and_a_flood_of_ends_closes(self, enforce: Enforce, protocol: str) -> None:
        enforce(own={**OWN, "rate": "8/min"})
        client = await subscribed(protocol)
        for number in range(2, 13):  # five are refused, as many as are answered at once
            await client.send_json_to(operation(protocol, str(number)))
        await becomes(lambda: only().refused == 5)
        assert len(news) == 7
        for number in range(1, 8):
            await client.send_json_to({"id": str(number), "type": WORDS[protocol][1]})
        await becomes(lambda: not news)
        assert only().refused == 12
        for number in range(6):
            await client.send_json_to({"id": f"x{number}", "type": WORDS[protocol][1]})
        assert await closing(client) == CODES[protocol]

    async def test_a_client_that_may_not_begin_is_closed_and_comes_back(self, enforce: Enforce, protocol: str) -> None:
        enforce(own=OWN, handshakes={"rate": "1/min", "events": ("connect",), "key": "everyone"})
        for _ in range(2):  # the first message is refused, then a handshake
            client = await opened(graphql(throttle_cost=3), subprotocols=[protocol])
            await client.send_json_to({"type": "connection_init"})
            if protocol == "graphql-ws":
                assert (await client.receive_json_from())["type"] == "connection_error"
            event = await client.receive_output()
            assert (event["type"], event["code"]) == ("websocket.close", CODES[protocol])
            await client.wait()

    @pytest.mark.parametrize("pings", [0, 8])
    async def test_a_late_beginning_is_never_refused_in_silence(
        self, enforce: Enforce, protocol: str, pings: int
    ) -> None:
        enforce(own=OWN)
        ladder = {} if pings else {"error": 0}
        client = await opened(graphql(throttle_ladder=ladder, throttle_cost=3), subprotocols=[protocol])
        for _ in range(pings):
            await client.send_json_to({"type": "ping"})
        await client.send_json_to({"type": "connection_init", "payload": {"token": "x" * 2000}})
        assert await closing(client) == CODES[protocol]

    async def test_what_answers_no_message(self, enforce: Enforce, change: Any, protocol: str) -> None:
        slots: dict[str, Any] = {**TWO_SOCKETS, "events": ("connection",)}
        outward = {**OWN, "events": ("send",), "rate": "1/min"}
        enforce(sockets=slots, outward=outward)
        client = await subscribed(protocol)  # the acknowledgement has used up what may be sent
        change(Rule("sockets", **{**slots, "limit": 1}), Rule("outward", **outward))
        news[0].put_nowait("dropped")
        await becomes(lambda: only().lost)
        only().start_close(Close(4410, "closed", {"type": "error", "code": "closed", "detail": "By an operator."}))
        frames = []
        while (event := await client.receive_output())["type"] != "websocket.close":
            frames.append(json.loads(event["text"]))
        if protocol == "graphql-transport-ws":
            assert [frame["type"] for frame in frames] == ["pong", "pong"]
            assert (frames[0]["payload"]["lost"], frames[1]["payload"]["code"]) == (1, "closed")
        else:
            error = {"message": "By an operator.", "extensions": {"code": "closed"}}
            assert frames == [{"type": "connection_error", "payload": error}]
        assert event["code"] == 4410
        await client.wait()

    async def test_a_message_of_no_operation_has_no_answer(self, enforce: Enforce, protocol: str) -> None:
        enforce(own=OWN)
        client = await opened(graphql(throttle_cost=3), subprotocols=[protocol])
        for text in ("{", "[" * 100_000, "[]", "7", '{"type": []}', '{"type": "subscribe", "id": {}}'):
            await client.send_to(text)
        assert await client.receive_nothing()
        assert only().refused == 6
        await client.disconnect()


async def test_a_refused_ping_is_answered_and_a_refused_goodbye_passes(enforce: Enforce) -> None:
    enforce(own=OWN)
    client = await subscribed("graphql-transport-ws")
    await client.send_json_to({"type": "ping"})
    assert await client.receive_json_from() == {"type": "pong"}
    await client.send_json_to({"type": "pong"})
    assert await client.receive_nothing()
    await client.disconnect()
    client = await subscribed("graphql-ws")
    await client.send_json_to({"type": "connection_terminate"})
    assert (await client.receive_output())["code"] == 1000
    await client.disconnect()  # as the server says when it has closed


def answer(decision: Any, message: Any) -> Any:
    return {"re": json.loads(message["text"])["id"], "wait": not decision.allowed}


class TestAnswers:
    @pytest.mark.usefixtures("never_closed")
    async def test_each_refused_message_has_one_up_to_five_at_once(self, enforce: Enforce, loop_clock: Any) -> None:
        enforce(own=OWN)
        async with Line() as line:
            line.send(*"abcdefghijk")
            await line.until(lambda: only().refused == 9)
            assert [frame.get("code") for frame in line.frames[2:]] == ["rate_limited"] * 5
            for number in (6, 7):  # then one a second
                await asyncio.sleep(1)
                refused = only().refused
                line.send("x", "x")
                await line.until(lambda refused=refused: only().refused == refused + 2)
                assert len(line.told("error")) == number

    @pytest.mark.parametrize(
        "payload",
        [
            answer,
            lambda decision, message=None: answer(decision, message),
            lambda decision, *, message: answer(decision, message),
            lambda message, decision: answer(decision, message),
            lambda refusal, frame: answer(message=frame, decision=refusal),
        ],
    )
    async def test_a_payload_is_made_of_the_refused_message(self, enforce: Enforce, payload: Any) -> None:
        enforce(own=OWN)
        async with Line(payload=payload) as line:
            line.send(*(json.dumps({"id": number}) for number in range(5)))
            await line.until(lambda: only().refused == 3)
            assert line.frames[2:] == [{"re": number, "wait": True} for number in (2, 3, 4)]
