"""The key of a session that exists: a cookie may say anything."""

from __future__ import annotations

import asyncio
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation


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
    return session.session_key if session.keys() else None


def _on_an_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
