"""The registry tells what is held, and what Redis does not know yet, whatever the order of events."""

from __future__ import annotations

import json
import os

import pytest

from django_throttle.connections.leases import MAX_RELEASED, Leases, Release

PAIR, OTHER, THIRD = (("rule", f"user:{number}") for number in (1, 2, 3))


@pytest.fixture
def registry() -> Leases:
    """Redis knows this process, and that it may hold leases of the first pair."""
    registry = Leases()
    registry.confirm(registry.uid, 1, PAIR)
    return registry


def test_introduces_itself_until_redis_knows_it() -> None:
    registry = Leases()
    uid = registry.uid
    assert len(uid) == 12
    assert json.loads(registry.introduction_under(uid))["pid"] == os.getpid()
    registry.confirm("another", 1, PAIR)  # a reply to a call made under a uid that was replaced meanwhile
    assert not registry.is_introduced and not registry.is_announced(*PAIR)
    registry.confirm(uid, 1, PAIR)
    assert registry.is_announced(*PAIR) and registry.introduction_under(uid) == ""
    registry.confirm(uid, 0, PAIR)
    assert registry.lost
    registry.renew()
    assert registry.introduction_under(uid) == "" and registry.introduction_under(registry.uid)


def test_a_release_before_the_registration_arrives_is_owed_under_both_uids(registry: Leases) -> None:
    registry.hold(*PAIR, "a", registry.uid)
    old = registry.renew()
    owed = registry.release(*PAIR, "a")
    assert set(owed) == set(registry.unconfirmed()) == {Release(old, *PAIR, "a"), Release(registry.uid, *PAIR, "a")}
    assert registry.release(*PAIR, "a") == ()
    registry.confirm_released(*owed)
    assert registry.unconfirmed() == []


def test_a_release_while_the_registration_travels_is_owed_after_it(registry: Leases) -> None:
    registry.hold(*PAIR, "a", sent=False)
    ((pair, leases),) = registry.to_register(registry.take_unsent(10)).items()
    registry.release(*PAIR, "a")
    registry.registered(registry.uid, pair, leases)
    registry.confirm_released(Release(registry.uid, *PAIR, "a"))  # whichever of the two arrived first
    assert registry.unconfirmed() == [Release(registry.uid, *PAIR, "a", again=True)]


def test_the_newest_of_each_pair_that_redis_knows(registry: Leases) -> None:
    registry.confirm(registry.uid, 1, OTHER, THIRD)
    for pair, lease in ((PAIR, "a"), (OTHER, "b"), (THIRD, "c"), (PAIR, "d")):
        registry.hold(*pair, lease)
    assert registry.newest(9) == [(PAIR, "d"), (THIRD, "c"), (OTHER, "b")]
    assert registry.newest(1) == [(PAIR, "d")]
    registry.drop(*PAIR, "d")
    registry.send_again([THIRD])
    assert registry.newest(9) == [(PAIR, "a"), (OTHER, "b")]


def test_what_redis_has_given_back_last(registry: Leases) -> None:
    for lease in "abc":
        registry.hold(*PAIR, lease, registry.uid)
        registry.confirm_released(*registry.release(*PAIR, lease))
    registry.confirm_released(Release("another", *PAIR, "d"))
    registry.hold(*PAIR, "b", registry.uid)  # a call that failed, was given back, and was granted after all
    assert registry.last_released() == [(PAIR, "c"), (PAIR, "a")]
    registry.renew()
    assert registry.last_released() == []
    registry.confirm_released(*(Release(registry.uid, *PAIR, str(number)) for number in range(10 * MAX_RELEASED)))
    assert len(registry.last_released()) == MAX_RELEASED
