"""Client addresses: networks, the forwarding header fields, and which proxies are trusted with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import islice
from typing import Final

from django_throttle.conf import conf
from django_throttle.exceptions import InvalidSetting

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
    text = str(text or "")
    return short_address(text) if len(text) <= MAX_TEXT else _parse(_undressed(text))


def network(address: object, ipv6_prefix: int) -> str | None:
    """The address in one notation: IPv4 whole, IPv6 by its prefix; None when it is not an address."""
    found = address if isinstance(address, (IPv4Address, IPv6Address)) else parse(address)
    return None if found is None else notation(found, ipv6_prefix)


@lru_cache(maxsize=4096)
def notation(address: Address, ipv6_prefix: int) -> str:
    """IPv4 whole, IPv6 by its prefix."""
    if isinstance(address, IPv4Address):
        return str(address)
    spare = 128 - ipv6_prefix
    return f"{IPv6Address(int(address) >> spare << spare)}/{ipv6_prefix}"


@lru_cache(maxsize=4096)
def short_address(text: str) -> Address | None:
    """The same of a text that is not long, remembered."""
    return _parse(_undressed(text))


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


Network = IPv4Network | IPv6Network

UNIX: Final = "unix"
# How servers report a peer that came over a Unix socket: most not at all, waitress and some gunicorns like this.
LOCAL: Final = ("localhost", "b''")


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies of this site: their networks, or how many of them a request passes in a row."""

    networks: tuple[Network, ...] = ()
    count: int = 0
    declared: bool = False

    def trust(self, peer: object, address: Address | None) -> bool:
        """Whether the peer's header is believed: a local process may always speak where there are proxies at all."""
        if address is None:
            return self.declared and is_local(peer)
        return self.count > 0 or self.include(address)

    def include(self, address: Address) -> bool:
        """Whether the address lies in one of the networks."""
        return any(address in network for network in self.networks)

    def client(self, said: Callable[[], str], header: str, near: Address | None) -> Address | None:
        """The nearest address that is not a proxy's, seen from a trusted peer; ``said`` is what the header says."""
        entries = hops(header, said())
        if self.count:
            return parse(next(islice(entries, self.count - 1, None), "")) or near
        for entry in entries:
            found = parse(entry)
            if found is None:  # a proxy that does not know whom it serves: then it is as far as we can see
                return near
            near = found
            if not self.include(found):
                break
        return near


def client_address(peer: object, header: Callable[[str], str]) -> Address | None:
    """The client's address; None where nobody knows one. ``header`` gives all lines of a header, joined by commas."""
    settings = conf()
    near = parse(peer)
    proxies = declared(settings.TRUSTED_PROXIES)
    if not proxies.trust(peer, near):
        return near
    return proxies.client(lambda: header(settings.PROXY_HEADER), settings.PROXY_HEADER, near)


def is_local(peer: object) -> bool:
    """True for a peer without an address: a Unix socket, which only processes of this host reach."""
    return not peer or peer in LOCAL or str(peer).startswith(f"{UNIX}:")


def declared(setting: object) -> Proxies:
    """The proxies that TRUSTED_PROXIES names; raises InvalidSetting where it makes no sense, rather than trust."""
    if setting is None:
        return Proxies()
    if isinstance(setting, (list, tuple, set, frozenset)) and all(isinstance(text, str) for text in setting):
        return _of_networks(tuple(setting))
    if type(setting) is int and 0 <= setting <= MAX_HOPS:
        return Proxies(count=setting, declared=setting > 0)
    kinds = f"a list of networks, or a number from 0 to {MAX_HOPS}"
    raise InvalidSetting(f"TRUSTED_PROXIES is {kinds}, not {setting!r}")


@lru_cache(maxsize=16)
def _of_networks(texts: tuple[str, ...]) -> Proxies:
    return Proxies(tuple(_network(text) for text in texts if text != UNIX), declared=bool(texts))


def _network(text: str) -> Network:
    try:
        found = ip_network(text)
    except ValueError as error:
        raise InvalidSetting(f"TRUSTED_PROXIES has networks like 10.0.0.0/8; {error}") from None
    mapped = getattr(found.network_address, "ipv4_mapped", None)
    if mapped is not None and found.prefixlen >= 96:
        found = IPv4Network((int(mapped), found.prefixlen - 96))
    if found.prefixlen == 0:
        raise InvalidSetting(f"TRUSTED_PROXIES: {text!r} is everyone, who could then claim to be anyone")
    return found
