"""One request to each kind of server: allowed, refused, and its slot given back."""

from __future__ import annotations

import pytest

from tests.http.servers import Server, Visit
from tests.http.test_slots_servers import NAMED, Caller
from tests.servers import RedisServer, wait_until

RULES = {"slots": NAMED, "api": {"rate": "1/h", "key": "tests.http.served.who"}}
KINDS = ["gunicorn-sync", "gunicorn", "gunicorn-gevent", "uvicorn-h11", "daphne", "hypercorn", "granian"]


@pytest.mark.smoke
@pytest.mark.parametrize("name", KINDS)
def test_a_request_is_counted_refused_and_gives_its_slot_back(
    redis_server: RedisServer, servers: None, name: str
) -> None:
    caller = Caller(redis_server)
    with Server(name, redis_server, RULES) as server:
        statuses = []
        for _ in range(2):
            with Visit(server, f"/middleware/quick/{caller.name}") as visit:
                statuses += visit.statuses()
        assert statuses == [200, 429]
        wait_until(lambda: caller.held() == 0)
