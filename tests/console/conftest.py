"""Calls that tests of records make, of which none is recorded before."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_throttle.console.recording import own_records
from django_throttle.console.recording.cells import Minute, total
from django_throttle.console.recording.read import hours, minutes
from django_throttle.core import Rule
from django_throttle.identity.call import Call
from django_throttle.limiter import execute_decision, prepare_decision
from django_throttle.rulebook import Snapshot
from django_throttle.stores import AnyStore
from django_throttle.stores.base import BlockingIo
from tests.callers import SameByEveryKey


class By(SameByEveryKey):
    def __init__(self, ident: str) -> None:
        super().__init__(subject=None)
        self.ident = lambda key: ident  # type: ignore[method-assign]


def call(store: AnyStore, rules: Iterable[Rule], ident: str, times: int = 1, **call: Any) -> int:
    io, snapshot, given = BlockingIo(store), Snapshot(rules), {"scope": "search", "method": "GET", **call}
    calls = [Call(events=("request",), caller=By(ident), ident=ident, **given) for _ in range(times)]  # type: ignore[misc]
    return sum(execute_decision(io, prepare_decision(io, snapshot, call, True), call).allowed for call in calls)


def recorded(store: AnyStore, rule: str, *, by_hour: bool = False) -> Minute:
    now = timezone.now()
    read = hours if by_hour else minutes
    return total(read(store, now - timedelta(hours=23), now + timedelta(hours=1), [rule])[rule])


@pytest.fixture(autouse=True)
def nothing_recorded() -> Iterator[None]:
    own_records.reset()
    yield
    own_records.reset()
