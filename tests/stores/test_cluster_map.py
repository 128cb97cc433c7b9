"""Where a key of a Cluster lies, and who is asked for it: without a server."""

from __future__ import annotations

from typing import Any

import pytest

from django_throttle.stores.cluster_map import Slots, slot_of

# As CLUSTER KEYSLOT of Redis says.
SLOTS_OF = {"foo": 12182, "bar": 5061, "{foo}bar": 12182, "a{foo}": 12182, "{}foo": 9500, "foo{}{bar}": 8363}
SEED, OTHER = ("10.0.0.1", 7000), ("10.0.0.2", 7001)


def node(host: str, port: int) -> list[Any]:
    return [host.encode(), port, b"id"]


@pytest.mark.parametrize(("key", "slot"), SLOTS_OF.items())
def test_the_slot_of_a_key_is_that_of_its_tag(key: str, slot: int) -> None:
    assert slot_of(key) == slot


def test_nobody_is_known_until_a_node_has_told() -> None:
    slots = Slots([SEED])
    assert slots.owner(0) is None
    assert slots.someone() == SEED


def test_each_slot_is_asked_of_the_first_node_that_serves_it() -> None:
    slots = Slots([SEED])
    slots.learn([[0, 99, node(*SEED), node("10.0.0.9", 7009)], [100, 16383, node(*OTHER)]], SEED)
    assert [slots.owner(slot) for slot in (0, 99, 100, 16383)] == [SEED, SEED, OTHER, OTHER]
    slots.move(99, OTHER)
    assert [slots.owner(slot) for slot in (98, 99)] == [SEED, OTHER]


def test_a_node_without_an_address_is_the_one_that_was_asked() -> None:
    slots = Slots([SEED])
    slots.learn([[0, 16383, node("", 7000)]], SEED)
    assert slots.owner(5) == SEED
