"""What a header says of the hops that a request has made: the last first, as that one is known best."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

# How many hops are looked at, from the right: more than any site has in a row.
MAX_HOPS: Final = 32
FORWARDED: Final = "forwarded"
MAX_ELEMENT: Final = 512

_WORD: Final = r"[\w!#$%&'*+.^`|~-]+"
# Also without the quotes that brackets and colons call for, as some proxies write them.
_PAIR: Final = rf'({_WORD})=("(?:[^"\\]|\\.)*"|[\w!#$%&\'*+.^`|~:\[\]-]+)'
_FOUND: Final = re.compile(_PAIR, re.ASCII)
_ELEMENT: Final = re.compile(rf"[ \t]*{_PAIR}(?:[ \t]*;[ \t]*{_PAIR})*[ \t]*;?[ \t]*", re.ASCII)


def hops(header: str, said: str) -> Iterator[str]:
    """What each hop wrote of the one before it, from the right; whatever makes no sense is an empty text.

    Split at every comma, those between quotes included: whoever is further left writes quotes as well, and one that
    is never closed must not swallow what our own proxies have added.
    """
    read = _for if header.lower() == FORWARDED else str
    return map(read, reversed(said.rsplit(",", MAX_HOPS)[-MAX_HOPS:]))


def _for(element: str) -> str:
    """RFC 7239, 4: the one who asked, as this hop saw it."""
    if len(element) > MAX_ELEMENT or not _ELEMENT.fullmatch(element):
        return ""
    found = [value for name, value in _FOUND.findall(element) if name.lower() == "for"]
    if len(found) != 1:
        return ""
    return re.sub(r"\\(.)", r"\1", found[0][1:-1]) if found[0].startswith('"') else found[0]
