"""What arrives at once, at several processes of a real server, is admitted exactly up to the limit (A25, A26)."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.http.servers import Server, Visit
from tests.servers import RedisServer, wait_until

LIMIT, BURST = 50, 200
NAMED: dict[str, Any] = {"rate": f"{LIMIT}/h", "algorithm": "sliding_log", "key": "tests.http.served.caller"}
RULES = {
    "requests": {**NAMED, "scopes": ["middleware"]},
    "logins": {**NAMED, "scopes": ["drf"], "count_on": [401, 403]},
}


@pytest.fixture(scope="module")
def site(redis_server: RedisServer, servers: None) -> Iterator[Server]:
    with Server("uvicorn-4", redis_server, RULES) as running:
        yield running


def burst(site: Server, *wheres: str) -> Counter[int]:
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
def test_a_parallel_burst_admits_exactly_the_limit(site: Server, figure: Callable[..., None]) -> None:
    """By DRF's own throttle it was 367 and 223 of a limit of 100."""
    found = burst(site, *[f"/middleware/quick/{uuid4().hex}"] * BURST)
    figure(f"passed of {BURST} at once, limit {LIMIT},", found[200])
    assert found == {200: LIMIT, 429: BURST - LIMIT}


@pytest.mark.row("A26")
def test_pipelined_requests_are_counted_one_by_one(site: Server, figure: Callable[..., None]) -> None:
    where = f"/middleware/quick/{uuid4().hex}"
    visits = [Visit(site, *[where] * 20) for _ in range(10)]
    found = Counter(status for visit in visits for status in visit.statuses())
    for visit in visits:
        visit.leave()
    figure(f"passed of {BURST}, limit {LIMIT},", found[200])
    assert found == {200: LIMIT, 429: BURST - LIMIT}


@pytest.mark.row("A38")
def test_right_passwords_are_free_and_exactly_the_limit_of_wrong_ones_is_tried(site: Server) -> None:
    where = f"/drf/login/{uuid4().hex}"
    for _ in range(3):
        assert burst(site, *[f"{where}?password=right"] * LIMIT) == {200: LIMIT}
    found = burst(site, *[where, f"{where}?password=right"] * (BURST // 2))
    assert found[401] <= LIMIT

    def use_up() -> bool:  # a process goes on refusing for up to a second what it has refused
        found.update(burst(site, *[where] * 20))
        return found[401] >= LIMIT

    wait_until(use_up, timeout=20, every=0.05)
    assert burst(site, *[where] * BURST) == {429: BURST}
    assert found[401] == LIMIT
