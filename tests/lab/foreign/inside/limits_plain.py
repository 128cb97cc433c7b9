"""A plugin of pytest: the tests of limits name a Redis of their own machine; it listens elsewhere."""

from __future__ import annotations

import os
from typing import Any

import pytest
import redis
from limits import storage

REDIS = os.environ["FOREIGN_THEIR_REDIS"]
storage_from_string = storage.storage_from_string


def storage_elsewhere(uri: str, **options: Any) -> Any:
    return storage_from_string(uri.replace("redis://localhost:7379", REDIS), **options)


storage.storage_from_string = storage_elsewhere


@pytest.fixture(autouse=True)
def redis_basic() -> None:
    with redis.Redis.from_url(REDIS) as client:
        client.flushall()


@pytest.fixture
def nothing() -> None:
    """A server of another kind, which no test that is run asks for."""
