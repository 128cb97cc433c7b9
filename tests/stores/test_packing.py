"""What decisions have in common is packed once, and says the same as what is packed anew."""

from __future__ import annotations

from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.commands import Decide, rule_set
from django_throttle.stores import RedisStore
from django_throttle.stores.commands import DecideCommand
from django_throttle.stores.sync_pool import pack

RULES = (Rule("gcra", "100/h", algorithm="gcra"), Rule("log", "9/min", algorithm="sliding_log"), Rule("window", "5/s"))
# The last of them are under another ident.
IDENTS = ("user:1", "user:1", "user:1"), ("user:1", "user:1", "ip:2")


def decision(store: RedisStore, idents: tuple[str, ...], cost: int = 1) -> DecideCommand:
    return DecideCommand(store, Decide(rule_set(RULES).charges(idents, cost)))


@pytest.mark.parametrize("idents", IDENTS)
def test_a_prepared_call_is_sent_as_any_other(idents: tuple[str, ...], redis_url: str) -> None:
    made = decision(RedisStore(redis_url), idents)
    assert made.packed() == pack(made.by_sha())


@pytest.mark.parametrize("idents", IDENTS)
def test_so_are_several_as_one(idents: tuple[str, ...], redis_url: str) -> None:
    store = RedisStore(redis_url)
    made: list[Any] = [decision(store, idents), decision(store, idents[::-1]), decision(store, idents, 3)]
    joined = made[0].joined(made[:1]), made[0].joined([one for one in made if one.script is made[0].script])
    for call in joined:
        assert call.packed() == pack(call.by_sha())
