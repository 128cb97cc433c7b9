"""What an ident costs in Redis: some bytes, however often it calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.servers import RedisServer

IDENTS = 20_000
AT_ONCE = 1000
CALLS = 2


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server that remembers nothing of other tests: what it keeps in reserve would count."""
    with RedisServer() as fresh:
        yield fresh


def bytes_an_ident(server: RedisServer, rule: Rule) -> float:
    """The growth of used_memory by 20,000 idents, one's share of the table of keys and of expiries included."""

    async def calls_of_all() -> None:
        for start in range(0, IDENTS, AT_ONCE):
            for _ in range(CALLS):
                asked = (limiter.aacquire(f"user:{number}") for number in range(start, start + AT_ONCE))
                assert not any(decision.degraded for decision in await asyncio.gather(*asked))

    limiter = Limiter([rule], RedisStore(server.url, deadline=10.0))
    with server.client() as client:
        limiter.acquire("user:0")
        assert client.flushall()
        before = client.info("memory")["used_memory"]
        asyncio.run(calls_of_all())
        assert client.dbsize() == IDENTS
        return (client.info("memory")["used_memory"] - before) / IDENTS


@pytest.mark.row("A20")
@pytest.mark.parametrize(
    ("rule", "most"),
    [
        (Rule("gcra", "100/h", algorithm="gcra"), 165),
        (Rule("gcra with fractions", "7/h", algorithm="gcra"), 180),
        (Rule("sliding_window", "100/min"), 195),
    ],
    ids=lambda value: value.name if isinstance(value, Rule) else "",
)
def test_an_ident_takes_no_more_than(
    rule: Rule,
    most: int,
    server: RedisServer,
    figure: Callable[..., None],
) -> None:
    found = bytes_an_ident(server, rule)
    figure(f"{rule.algorithm}", found, "bytes")
    assert found <= most
