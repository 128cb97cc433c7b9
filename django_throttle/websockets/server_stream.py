"""Detection of sockets that a server has closed without telling the application.

hypercorn (0.17 and 0.18) answers a handshake with 400 if a frame arrives before the application accepts. It does not
tell the application, and sends no disconnect when the client leaves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Final

SERVER: Final = "hypercorn"
MAX_DEPTH: Final = 6  # wrappers of middleware around the server's ``send``


def is_closed_by_server(send: object) -> bool:
    """Return True if the server has closed the stream of this ``send``."""
    if SERVER not in sys.modules:
        return False
    stream = _stream(send, MAX_DEPTH, set())
    return getattr(stream, "closed", None) is True


def _stream(function: object, depth: int, seen: set[int]) -> object:
    """Return hypercorn's stream. Search bound methods, partials, closures and objects that store functions."""
    owner = getattr(function, "__self__", None)
    if type(owner).__module__.startswith(f"{SERVER}.") and hasattr(owner, "closed"):
        return owner
    if not depth or id(function) in seen:
        return None
    seen.add(id(function))
    streams = (_stream(inner, depth - 1, seen) for inner in _wrapped(function, owner))
    return next((stream for stream in streams if stream is not None), None)


def _wrapped(function: object, owner: object) -> Iterator[object]:
    """Yield the functions that a function calls, as far as its attributes show them."""
    if isinstance(function, partial):
        yield from (function.func, *function.args)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # an empty cell
            continue
        if callable(content):
            yield content
    attributes = tuple(getattr(owner, "__dict__", {}).values())
    yield from (value for value in attributes if callable(value) and hasattr(value, "__self__"))
