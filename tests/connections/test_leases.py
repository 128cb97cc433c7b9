"""The registry tells what is held, and what Redis does not know yet, whatever the order of events."""

from __future__ import annotations

import json
import os
import threading

import pytest

from django_throttle.connections.leases import Leases, Release
from tests.inside import lock_of

PAIR = ("rule", "user:1")


@pytest.fixture
def registry() -> Leases:
    registry = Leases()
    registry.confirm(registry.uid, 1, PAIR)
    return registry


def test_holds_and_drops_once() -> None:
    registry = Leases()
    registry.hold(*PAIR, "a")
    registry.hold(*PAIR, "a")
    registry.hold(*PAIR, "b")
    assert (len(registry), registry.count(*PAIR), registry.is_held(*PAIR, "a")) == (2, 2, True)
    assert registry.holdings() == {PAIR: ("a", "b")}
    assert registry.drop(*PAIR, "a")
    assert not registry.drop(*PAIR, "a")
    assert registry.drop(*PAIR, "b")
    assert not registry.drop("rule", "user:2", "b")
    assert (len(registry), registry.holdings(), registry.count(*PAIR)) == (0, {}, 0)


def test_introduces_itself_until_redis_knows_it() -> None:
    registry = Leases()
    assert len(registry.uid) == 12
    assert json.loads(registry.introduction_under(registry.uid))["pid"] == os.getpid()
    registry.confirm("another", 1, PAIR)  # a reply to a call made under a uid that was replaced meanwhile
    assert not registry.is_introduced and not registry.is_announced(*PAIR)
    registry.confirm(registry.uid, 1, PAIR)
    assert registry.is_introduced and registry.is_announced(*PAIR)
    registry.confirm(registry.uid, 0, PAIR)
    assert registry.lost


def test_what_redis_was_told_is_not_sent_again(registry: Leases) -> None:
    registry.hold(*PAIR, "a", registry.uid)
    assert registry.take_unsent(10) == []


def test_what_redis_was_not_told_is_sent_with_its_age(registry: Leases) -> None:
    registry.hold(*PAIR, "a", sent=False)
    registry.hold("rule", "user:2", "b", registry.uid)  # its announcement failed
    taken = registry.take_unsent(10)
    assert set(taken) == {PAIR, ("rule", "user:2")}
    assert 0 <= registry.to_register(taken)[PAIR]["a"] < 20
    assert registry.take_unsent(10) == []
    registry.send_again(taken)
    assert set(registry.take_unsent(1)) <= set(taken)


def test_a_lease_taken_under_a_replaced_uid_is_moved(registry: Leases) -> None:
    old = registry.uid
    assert registry.renew() == old != registry.uid
    assert registry.former == (old,)
    registry.hold(*PAIR, "a", old)
    assert registry.unconfirmed() == [Release(old, *PAIR, "a")]
    assert list(registry.take_unsent(10)) == [PAIR]


def test_renewing_sends_everything_again(registry: Leases) -> None:
    registry.hold(*PAIR, "a", registry.uid)
    registry.lost = True
    registry.renew()
    assert list(registry.take_unsent(10)) == [PAIR]
    assert not registry.is_introduced and not registry.is_announced(*PAIR) and not registry.lost


def test_a_release_before_the_registration_arrives_is_owed_under_both_uids(registry: Leases) -> None:
    registry.hold(*PAIR, "a", registry.uid)
    old = registry.renew()
    owed = registry.release(*PAIR, "a")
    assert set(owed) == set(registry.unconfirmed()) == {Release(old, *PAIR, "a"), Release(registry.uid, *PAIR, "a")}
    assert registry.release(*PAIR, "a") == ()


def test_a_release_while_the_registration_travels_is_owed_after_it(registry: Leases) -> None:
    registry.hold(*PAIR, "a", sent=False)
    ((pair, leases),) = registry.to_register(registry.take_unsent(10)).items()
    registry.release(*PAIR, "a")
    registry.registered(registry.uid, pair, leases)
    registry.confirm_released(Release(registry.uid, *PAIR, "a"))  # whichever of the two arrived first
    assert registry.unconfirmed() == [Release(registry.uid, *PAIR, "a", again=True)]


def test_what_redis_cannot_know_of_leaves_no_debt(registry: Leases) -> None:
    """It was away all the time: nothing piles up, however many come and go meanwhile."""
    registry.hold(*PAIR, "before", registry.uid)
    for number in range(100):
        registry.hold(*PAIR, str(number), sent=False)
        registry.hold(*PAIR, str(number), sent=False)
        assert registry.release(*PAIR, str(number)) == ()
    registry.renew()
    assert registry.unconfirmed() == []
    assert len(registry.release(*PAIR, "before")) == len(registry.unconfirmed()) == 2
    assert registry._unknown == set()


@pytest.mark.parametrize("how", ["registered", "called", "granted"])
def test_what_redis_may_know_of_is_owed(how: str, registry: Leases) -> None:
    if how == "called":  # in vain, as far as is known here
        registry.release_uncertain(*PAIR, "a", registry.uid)
    registry.hold(*PAIR, "a", sent=False)
    if how == "registered":  # on its way, or lost on it
        registry.to_register(registry.take_unsent(10))
    if how == "granted":
        registry.hold(*PAIR, "a", registry.uid)
    assert registry.release(*PAIR, "a") == (Release(registry.uid, *PAIR, "a"),)


def test_owed_until_settled(registry: Leases) -> None:
    registry.hold(*PAIR, "a", registry.uid)
    registry.release(*PAIR, "a")
    owed = registry.unconfirmed()
    assert registry.unconfirmed() == owed == [Release(registry.uid, *PAIR, "a")]
    registry.confirm_released(*owed)
    assert registry.unconfirmed() == []


def test_a_caller_with_a_replaced_uid_introduces_nobody() -> None:
    registry = Leases()
    uid = registry.uid
    assert registry.introduction_under(uid)
    registry.renew()
    assert registry.introduction_under(uid) == ""
    assert registry.introduction_under(registry.uid)


def test_a_failed_acquire_granted_locally_is_not_released(registry: Leases) -> None:
    registry.release_uncertain(*PAIR, "a", registry.uid)
    registry.hold(*PAIR, "a", sent=False)
    assert registry.unconfirmed() == []
    assert registry.take_suspect(0, 10) == [PAIR]
    assert registry.take_suspect(0, 10) == []


def test_what_was_released_before_it_was_sent_leaves_nothing_behind() -> None:
    registry = Leases()
    for number in range(100):
        registry.hold("rule", f"user:{number}", "a", sent=False)
        registry.drop("rule", f"user:{number}", "a")
    assert not registry.has_unsent


def test_retires_what_stays_idle(registry: Leases) -> None:
    assert registry.retire(10) == []  # idle for the first time
    assert registry.retire(10) == [PAIR]
    assert not registry.is_announced(*PAIR)
    assert registry.retire(10) == [PAIR]  # until it is confirmed
    registry.retired([PAIR])
    assert registry.retire(10) == []


def test_does_not_retire_what_is_held_or_owed(registry: Leases) -> None:
    registry.hold(*PAIR, "a", registry.uid)
    assert [registry.retire(10) for _ in range(3)] == [[], [], []]
    registry.release(*PAIR, "a")
    assert [registry.retire(10) for _ in range(3)] == [[], [], []]


def test_announced_again_while_retiring_is_sent_again(registry: Leases) -> None:
    registry.retire(10)
    assert registry.retire(10) == [PAIR]
    registry.confirm(registry.uid, 1, PAIR)
    registry.hold(*PAIR, "a", registry.uid)
    registry.retired([PAIR])
    assert list(registry.take_unsent(10)) == [PAIR]


@pytest.mark.parametrize("how", ["drop", "release"])
def test_an_evicted_lease_is_unreleased_until_its_socket_releases_it(how: str, registry: Leases) -> None:
    """In memory, or while Redis is away and the process decides by itself."""
    registry.hold(*PAIR, "~a", registry.uid)
    registry.evict(*PAIR, "~a")
    assert (len(registry), registry.unreleased()) == (0, {"~a"})
    assert not getattr(registry, how)(*PAIR, "~a")
    assert registry.unreleased() == set()


def test_threads_lose_nothing() -> None:
    registry = Leases()

    def hammer(worker: int) -> None:
        for number in range(500):
            pair, lease = ("rule", f"user:{number % 7}"), f"{worker}-{number}"
            registry.hold(*pair, lease, sent=bool(number % 2))
            registry.holdings()
            registry.take_unsent(3)
            if number % 5:
                assert bool(registry.release(*pair, lease)) is bool(number % 2)

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry) == 16 * 100
    assert len(registry.unconfirmed()) == 16 * 200


def test_a_forked_child_holds_nothing() -> None:
    registry = Leases()
    registry.hold(*PAIR, "a")
    lock_of(registry).acquire()  # some thread may be at work while another forks
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps([len(registry), registry.uid]).encode())
        os._exit(0)
    lock_of(registry).release()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        held, uid = json.load(pipe)
    os.waitpid(child, 0)
    assert held == 0
    assert uid != registry.uid
    assert len(registry) == 1


def test_the_newest_of_each_pair_that_redis_knows(registry: Leases) -> None:
    other, third = ("rule", "user:2"), ("rule", "user:3")
    registry.confirm(registry.uid, 1, other, third)
    for pair, lease in ((PAIR, "a"), (other, "b"), (third, "c"), (PAIR, "d")):
        registry.hold(*pair, lease)
    assert registry.newest(9) == [(PAIR, "d"), (third, "c"), (other, "b")]
    assert registry.newest(1) == [(PAIR, "d")]
    registry.drop(*PAIR, "d")
    registry.send_again([third])
    assert registry.newest(9) == [(PAIR, "a"), (other, "b")]


def test_lost_announcements_are_made_again(registry: Leases) -> None:
    other = ("rule", "user:2")
    registry.confirm(registry.uid, 1, other)
    registry.hold(*PAIR, "a")
    assert (registry.sent_pairs(), registry.has_unsent, registry.has_announced) == ([PAIR], False, True)
    registry.announce_again()
    assert (registry.sent_pairs(), registry.has_unsent, registry.has_announced) == ([], True, False)
    assert list(registry.take_unsent(9)) == [PAIR]
    assert not registry.is_announced(*other)


def test_what_redis_has_given_back_last(registry: Leases) -> None:
    for lease in "abc":
        registry.hold(*PAIR, lease, registry.uid)
        registry.confirm_released(*registry.release(*PAIR, lease))
    registry.confirm_released(Release("another", *PAIR, "d"))
    registry.hold(*PAIR, "b", registry.uid)  # a call that failed, was given back, and was granted after all
    assert registry.last_released() == [(PAIR, "c"), (PAIR, "a")]
    registry.renew()
    assert registry.last_released() == []
    for number in range(1000):
        registry.confirm_released(Release(registry.uid, *PAIR, str(number)))
    assert len(registry.last_released()) == 100
