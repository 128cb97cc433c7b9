"""The version of the rules in Redis: a random text that every committed edit replaces."""

from __future__ import annotations

import logging
import secrets
from typing import Final

from django_throttle.exceptions import StoreError
from django_throttle.stores import get_store
from django_throttle.stores.base import Store
from django_throttle.stores.redis import RedisStore

logger = logging.getLogger("django_throttle")

TTL_MS: Final = 30 * 24 * 3600 * 1000
_unsent: str | None = None


def publish() -> str | None:
    """Put a new version into Redis and return it; None where there is no Redis, or it does not answer now.

    In the latter case the next ``fetch`` sends it.
    """
    global _unsent
    store = get_store()
    if not isinstance(store, RedisStore):
        return None
    _unsent = secrets.token_hex(8)
    return fetch(store)


def fetch(store: Store) -> str | None:
    """The version in Redis, which makes one up where it has none; None where nobody can say."""
    global _unsent
    if not isinstance(store, RedisStore):
        return None
    mine = _unsent
    name, given = ("publish_rules", mine) if mine else ("rules_version", secrets.token_hex(8))
    try:
        reply = store.call(name, [store.process_key("rules")], [given, TTL_MS])
    except StoreError as error:
        logger.debug("the version of the rules is not known: %s", error)
        return None
    if _unsent == mine:
        _unsent = None
    return reply.decode() if isinstance(reply, bytes) else str(reply)
