"""The key of a session that exists: a cookie may say anything."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Final

from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.exceptions import SynchronousOnlyOperation

# Where a session in a signed cookie has the name that it is counted by.
OWN: Final = "_throttle_session"


def key_of(session: Any) -> str | None:
    """The key; None of a session that is empty, or that nobody has stored.

    Raises SynchronousOnlyOperation on an event loop where it has to be read first: a database would say so by itself,
    a cache and files make the loop wait.
    """
    # Its key is whatever the cookie says until the session has been read.
    if session is None or not session.session_key:
        return None
    if not hasattr(session, "_session_cache") and _on_an_event_loop():
        raise SynchronousOnlyOperation("a session that has not been read yet is not read on an event loop")
    if not session.keys():
        return None
    return _lasting(session) if isinstance(session, SessionStore) else session.session_key


def _lasting(session: SessionStore) -> str:
    """What stays the same when a session that is kept in a signed cookie, which is its key, is saved again.

    It is put into the session, made of the first cookie, so that one sent again and again counts as one.
    """
    found = session.get(OWN)
    if not isinstance(found, str):
        found = session[OWN] = hashlib.blake2b(str(session.session_key).encode(), digest_size=16).hexdigest()
    return found


def _on_an_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
