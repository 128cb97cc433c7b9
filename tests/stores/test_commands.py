"""Commands: one round trip for all rules, and no text in a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from django_throttle.core import Charge, Rule
from django_throttle.core.decide import decide_charges
from django_throttle.core.io import run
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from django_throttle.stores.base import BlockingIo
from tests.stores.conftest import CAP, RATES, commands


@pytest.mark.row("F28")
def test_five_mixed_rules_are_one_command(
    acquire: Callable[..., Any], client: Redis, figure: Callable[..., None]
) -> None:
    rules = [*RATES[:4], CAP]
    acquire(*rules)  # loads the script, says that this process lives
    client.config_resetstat()
    for _ in range(3):
        assert acquire(*rules).allowed
    found = commands(client)
    figure("looks at the clock in three calls of five rules each", found["time"])
    assert found["evalsha"] == 3 and found["time"] == 3, "one call, one look at the clock"


@pytest.mark.row("A35")
@pytest.mark.parametrize("cost", [float("nan"), float("-inf"), -1])
def test_the_script_itself_refuses_a_cost_that_is_none(cost: Any, store: RedisStore, client: Redis) -> None:
    rule = Rule("fixed", "10/h", on_store_failure="deny")
    assert run(decide_charges(BlockingIo(store), (Charge(rule, "user:1", cost),))).unavailable
    assert client.dbsize() == 0


@pytest.mark.row("A59")
def test_no_text_becomes_part_of_a_script(store: RedisStore, client: Redis) -> None:
    def scripts() -> int:
        return int(client.info("memory")["number_of_cached_scripts"])

    assert Limiter([Rule("api", "5/h"), CAP], store).acquire("user:1").allowed
    before = scripts()
    for text in ("]] redis.call('FLUSHALL') --", "'..redis.call('FLUSHALL')..'", "%s {0} ${x}"):
        for ident in ("user:1", text):
            assert Limiter([Rule(text, "5/h"), CAP], store).acquire(ident).allowed
    assert scripts() == before
    assert Limiter([Rule("api", "5/h")], store).peek("user:1").remaining == 4


def test_stores_with_other_prefixes_secrets_and_databases_do_not_meet(redis_url: str) -> None:
    limiters = [
        Limiter([Rule("one", "1/h")], RedisStore(redis_url.removesuffix("/0") + database, deadline=5.0, **options))
        for database, options in (("/0", {}), ("/0", {"prefix": "other"}), ("/0", {"secret": "other"}), ("/1", {}))
    ]
    for allowed in (True, False):
        assert [limiter.acquire("user:1").allowed for limiter in limiters] == [allowed] * 4
