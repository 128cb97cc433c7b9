"""What is made of an error: the breaker hears of it, the log does, and it becomes a StoreError."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from django_throttle.exceptions import Cause, StoreError
from django_throttle.stores.failures import COUNTED, advice, cause_of, waited

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore

logger = logging.getLogger("django_throttle")

_REFUSED: Final = "Redis refuses a script"
_COMPLAINTS: Final = {
    Cause.POOL: "All connections are in use, failure policies decide meanwhile; see MAX_CONNECTIONS",
    Cause.BLOCKED: "Something blocks the event loop for longer than a decision may take",
}


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"  # redis-py's repr names a category instead


def as_store_error(store: RedisStore, error: Exception) -> StoreError:
    """The error with its cause; the log has one line when the breaker opens, and one a minute for other causes."""
    cause = cause_of(error)
    if cause in COUNTED:
        if store.breaker.failed(waited(error, store.link.seconds)):
            logger.warning("Redis does not answer (%s: %s); failure policies decide until it does", cause, _text(error))
    else:
        store.breaker.abandoned()
        if store.complaints.due(cause):
            logger.error("%s (%s: %s)%s", _COMPLAINTS.get(cause, _REFUSED), cause, _text(error), advice(error))
    return StoreError(cause, _text(error) + advice(error))
