"""While one node of a Cluster is away, what is on the others is kept up.

Errors stand in the place of its replies: every second ident is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from redis import Redis

from django_throttle.exceptions import StoreError
from tests.clock import FrozenClock
from tests.connections.conftest import MakeSite, Site
from tests.connections.worker import RULE

IDENTS = [f"user:{number}" for number in range(30)]
pytestmark = pytest.mark.usefixtures("small_batches")


@contextmanager
def away(site: Site) -> Iterator[None]:
    """The node does not answer this site; each batch that is sent meanwhile raises its error in the end."""
    lost, pipeline = {site.store.key(RULE.id, ident) for ident in IDENTS[::2]}, site.store.pipeline

    def partial(calls: Any) -> list[Any]:
        replies = pipeline([call for call in calls if call[1][0] not in lost])
        return [ConnectionError("away") if call[1][0] in lost else replies.pop(0) for call in calls]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.store, "pipeline", partial)
        patch.setattr(site.store.transport, "slot_of", len)
        yield


def fails(work: Callable[[], object]) -> None:
    with pytest.raises(StoreError, match="away"):
        work()


def counts(site: Site) -> tuple[int, int]:
    """What is counted of those on the node that is away, and of the others."""
    found = [site.count(ident) for ident in IDENTS]
    return sum(found[::2]), sum(found[1::2])


def holder(make_site: MakeSite) -> Site:
    site = make_site()
    for ident in IDENTS:
        site.take(ident)
    return site


def test_the_others_are_registered_and_released(make_site: MakeSite, redis: Redis) -> None:
    site, onlooker = holder(make_site), make_site()
    redis.flushall()
    site.leases.renew()
    with away(site):
        fails(site.reconciler.resend)
        assert counts(onlooker) == (0, 15)
    site.reconciler.resend()
    assert counts(onlooker) == (15, 15)
    with away(site):
        for pair, leases in site.leases.holdings().items():
            site.leases.release(*pair, *leases)
        fails(site.reconciler.resend)
        assert counts(onlooker) == (15, 0)
    site.reconciler.resend()
    assert (counts(onlooker), site.leases.unconfirmed()) == ((0, 0), [])


def test_the_others_are_swept(make_site: MakeSite, clock: FrozenClock) -> None:
    dead, living, onlooker = holder(make_site), make_site(), make_site()
    living.beat()
    living.reconciler.records.beat((), [dead.leases.uid], expires=False, most=0)
    with away(living):
        for _ in range(100):  # a batch of those that fail ends a turn
            clock.step(3.1)
            with suppress(StoreError):
                living.beat()
            if counts(onlooker) == (15, 0):
                break
        assert counts(onlooker) == (15, 0)
    clock.step(3.1)
    living.beat()
    assert counts(onlooker) == (0, 0)
