"""Rules in settings, and a book that forgets its database after each test."""

from collections.abc import Iterator
from typing import Any

import pytest

from django_throttle.identity.call import Call
from django_throttle.rulebook import Snapshot
from tests.callers import ANNA, KeyedCaller
from tests.inside import forget_rules


@pytest.fixture
def rules(settings: Any) -> Any:
    def put(**rules: dict[str, Any]) -> None:
        settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, "RULES": rules}

    put()
    return put


@pytest.fixture(autouse=True)
def fresh_book() -> Iterator[None]:
    yield
    forget_rules()


def names(snapshot: Snapshot) -> list[str]:
    return [rule.name for rule in snapshot.rules]


def charged(
    snapshot: Snapshot, scope: str, *events: str, caller: KeyedCaller = ANNA, cost: int = 1
) -> list[tuple[str, str, int]]:
    found = snapshot.match(Call(scope, events, caller, cost))
    return [(charge.rule.name, charge.ident, charge.cost) for charge in found]
