"""Addresses, however clients, servers and proxies write them, in one notation."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

Address = IPv4Address | IPv6Address

# The longest text of an IPv6 address has 45 characters: with brackets, a port and some spaces. Anything longer is
# none, and is not even looked at.
MAX_TEXT: Final = 64
SPACES: Final = " \t"
# RFC 6052, 2.1: where a network translates, each IPv4 client comes from an address in here.
TRANSLATED: Final = IPv6Network("64:ff9b::/96")
# Some servers and proxies report "[2001:db8::1]", "[2001:db8::1]:443" or "192.0.2.1:443".
_DRESSED: Final = re.compile(r"\[([^\]]*)\](?::[0-9]{1,5})?|([^:]*):[0-9]{1,5}")


def parse(text: object) -> Address | None:
    """The address; None for what is none.

    IPv4 in the dress of IPv6 is IPv4. Zone ids, brackets, ports and spaces are dropped, so that one peer is one
    address. An IPv4 address with leading zeros is none, because they are octal to some and decimal to others.
    """
    return _parse(_undressed(str(text or "")))


def network(address: object, ipv6_prefix: int) -> str | None:
    """The address in one notation: IPv4 whole, IPv6 by its prefix; None when it is not an address."""
    found = address if isinstance(address, (IPv4Address, IPv6Address)) else parse(address)
    if not isinstance(found, IPv6Address):
        return None if found is None else str(found)
    spare = 128 - ipv6_prefix
    return f"{IPv6Address(int(found) >> spare << spare)}/{ipv6_prefix}"


@lru_cache(maxsize=4096)
def _parse(bare: str) -> Address | None:
    try:
        found = ip_address(bare)
    except ValueError:
        return None
    return found if isinstance(found, IPv4Address) else _told(found)


def _undressed(text: str) -> str:
    bare, zone, _ = text[:MAX_TEXT].partition("%")
    if zone:
        return bare.lstrip(SPACES).removeprefix("[")
    if len(text) > MAX_TEXT:
        return ""
    bare = bare.strip(SPACES)
    dressed = _DRESSED.fullmatch(bare)
    return bare if dressed is None else dressed[1] or dressed[2] or ""


def _told(found: IPv6Address) -> Address:
    if found in TRANSLATED:
        return IPv4Address(int(found) & 0xFFFF_FFFF)
    return found.ipv4_mapped or found
