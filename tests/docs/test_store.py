"""The page of keys and scripts has what Redis has."""

from __future__ import annotations

import re

from django_throttle.connections.reconcile import Reconciler
from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from docs.scripts import FILE, script_table
from tests.pages import DOCS
from tests.servers import RedisServer

PAGE = (DOCS / "reference" / "store.rst").read_text(encoding="utf-8")
KEYS = re.findall(r"^``(dt:\S*)``", PAGE, re.MULTILINE)


def test_the_table_of_scripts_is_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == script_table(), "run python -m docs.scripts"


def test_each_key_of_a_site_is_of_a_kind_that_the_page_has(redis_server: RedisServer, redis_url: str) -> None:
    store = RedisStore(redis_url, prefix="dt", deadline=5.0)
    rules = [Rule("api", "5/min"), Rule("log", "5/min", algorithm="sliding_log")]
    Limiter([*rules, Rule("slots", limit=2, algorithm="concurrency")], store).acquire("user:1")
    Reconciler(store).beat()
    shapes = [re.escape(key).replace("hash", "[^}]+").replace("…", ".+") for key in KEYS]
    shapes = [re.sub(r"\b(rule|process|time)\b", "[^:]+", shape) for shape in shapes]
    with redis_server.client() as client:
        found = [str(key) for key in client.keys("dt:*")]
        assert all(client.ttl(key) > 0 for key in found)
    assert len(found) >= 5
    assert [key for key in found if not any(re.fullmatch(shape, key) for shape in shapes)] == []
