"""What arrives at once, at eight processes of a real server, is admitted exactly up to the limit (A25, A26)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.http.server import Site, Visit
from tests.servers import RedisServer, wait_until

LIMIT = 50
BURST = 200
PROCESSES = 8
NAMED: dict[str, Any] = {"algorithm": "sliding_log", "key": "tests.http.served.who", "scopes": ["middleware", "drf"]}
RULES = {"requests": {**NAMED, "rate": f"{LIMIT}/h"}}
LOGINS = {"logins": {**NAMED, "rate": f"{LIMIT}/h", "count_on": [401, 403]}}


@pytest.fixture(scope="module")
def counted(redis_server: RedisServer) -> Iterator[Site]:
    with Site("asgi", redis_server, RULES, PROCESSES) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(redis_server: RedisServer) -> Iterator[Site]:
    with Site("asgi", redis_server, LOGINS, PROCESSES) as running:
        yield running


def burst(site: Site, *wheres: str) -> Counter[int]:
    """A connection for each of them, opened beforehand, and all asked in one go."""
    visits = [Visit(site) for _ in wheres]
    for visit, where in zip(visits, wheres, strict=True):
        visit.ask(where)
    found = Counter(status for visit in visits for status in visit.statuses())
    for visit in visits:
        visit.leave()
    assert found.total() == len(wheres)
    return found


@pytest.mark.row("A25")
@pytest.mark.parametrize("door", ["middleware", "drf"])
def test_a_parallel_burst_admits_exactly_the_limit(counted: Site, door: str, figure: Callable[..., None]) -> None:
    """A25: by DRF's own throttle it was 367 and 223 of a limit of 100."""
    found = burst(counted, *[f"/{door}/quick/{uuid4().hex}"] * BURST)
    figure(f"passed of {BURST} at once, limit {LIMIT},", found[200])
    assert found == {200: LIMIT, 429: BURST - LIMIT}


@pytest.mark.row("A26")
def test_pipelined_requests_are_counted_one_by_one(counted: Site, figure: Callable[..., None]) -> None:
    """A26: ten connections, each with twenty requests in one packet."""
    where = f"/middleware/quick/{uuid4().hex}"
    visits = [Visit(counted, *[where] * 20) for _ in range(10)]
    found = Counter(status for visit in visits for status in visit.statuses())
    for visit in visits:
        visit.leave()
    figure(f"passed of {BURST}, limit {LIMIT},", found[200])
    assert found == {200: LIMIT, 429: BURST - LIMIT}


@pytest.mark.parametrize("door", ["middleware", "drf"])
class TestLogins:
    def test_of_wrong_passwords_exactly_the_limit_is_tried(self, guarded: Site, door: str) -> None:
        found = burst(guarded, *[f"/{door}/login/{uuid4().hex}"] * BURST)
        print(f"{BURST} wrong passwords at once, {PROCESSES} processes, limit {LIMIT}: {dict(found)}")
        assert found == {401: LIMIT, 429: BURST - LIMIT}

    @pytest.mark.row("A38")
    def test_right_ones_are_free_and_never_more_wrong_ones_are_tried(self, guarded: Site, door: str) -> None:
        name = uuid4().hex
        for _ in range(3):
            assert burst(guarded, *[f"/{door}/login/{name}?password=right"] * LIMIT) == {200: LIMIT}
        mixed = [f"/{door}/login/{name}", f"/{door}/login/{name}?password=right"] * (BURST // 2)
        found = burst(guarded, *mixed)
        print(f"half of them right: {dict(found)}")
        assert found[401] <= LIMIT

        def use_up() -> bool:  # a process goes on refusing for up to a second what it has refused
            found.update(burst(guarded, *[f"/{door}/login/{name}"] * 20))
            return found[401] >= LIMIT

        wait_until(use_up, timeout=20, every=0.05)
        assert burst(guarded, *[f"/{door}/login/{name}"] * BURST) == {429: BURST}
        assert found[401] == LIMIT
