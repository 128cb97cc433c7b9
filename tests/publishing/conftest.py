"""Rules in force, and groups that nobody is in yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from channels.layers import channel_layers

from django_throttle.publishing.groups import member_counts, members
from tests.doors import enforcer

enforce = pytest.fixture(enforcer)
renew = members.renew


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    renew()
    member_counts.forget()
    channel_layers.backends.clear()
    yield
    channel_layers.backends.clear()
    renew()
