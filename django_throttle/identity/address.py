"""Client addresses: networks, forwarding header fields, and the proxies whose header fields are trusted."""

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

#: Longer texts are not parsed. An IPv6 address has at most 45 characters, plus brackets, a port and spaces.
MAX_ADDRESS_CHARS: Final = 64
SPACES: Final = " \t"
#: RFC 6052, 2.1: IPv4 clients behind a translator have an address in this network.
NAT64_NETWORK: Final = IPv6Network("64:ff9b::/96")
# Some servers and proxies report "[2001:db8::1]", "[2001:db8::1]:443" or "192.0.2.1:443".
_WRAPPED: Final = re.compile(r"\[([^\]]*)\](?::[0-9]{1,5})?|([^:]*):[0-9]{1,5}")


def parse(text: object) -> Address | None:
    """Return the address in a text, or None if there is none.

    An IPv6 address that maps or translates an IPv4 address gives the IPv4 address. Zone ids, brackets, ports and spaces
    are dropped. A port after IPv6 without brackets is dropped if it cannot be a part of the address. IPv4 with leading
    zeros gives None, because some programs read it as octal, others as decimal.
    """
    text = str(text or "")
    return parse_short(text) if len(text) <= MAX_ADDRESS_CHARS else _parse(_without_brackets(text))


def network(address: object, ipv6_prefix: int) -> str | None:
    """Return the address in normal form: IPv4 whole, IPv6 by its prefix. Return None if it is not an address."""
    parsed = address if isinstance(address, (IPv4Address, IPv6Address)) else parse(address)
    return None if parsed is None else notation(parsed, ipv6_prefix)


@lru_cache(maxsize=4096)
def notation(address: Address, ipv6_prefix: int) -> str:
    """Return the normal form of an address: IPv4 whole, IPv6 by its prefix."""
    if isinstance(address, IPv4Address):
        return str(address)
    spare = 128 - ipv6_prefix
    return f"{IPv6Address(int(address) >> spare << spare)}/{ipv6_prefix}"


@lru_cache(maxsize=4096)
def parse_short(text: str) -> Address | None:
    """Return the same as ``parse``, with a cache, for texts of at most MAX_TEXT characters."""
    return _parse(_without_brackets(text))


def _parse(bare: str) -> Address | None:
    try:
        address = ip_address(bare)
    except ValueError:
        address_part = _before_port(bare)
        return _parse(address_part) if address_part != bare and ":" in address_part else None
    if isinstance(address, IPv6Address):
        return IPv4Address(int(address) & 0xFFFF_FFFF) if address in NAT64_NETWORK else address.ipv4_mapped or address
    return address


def _before_port(text: str) -> str:
    """Return the text before the last colon if a port may follow the colon, else the whole text."""
    before, _, port = text.rpartition(":")
    return before if len(port) <= 5 and port.isascii() and port.isdecimal() else text


def _without_brackets(text: str) -> str:
    bare, zone, _ = text[:MAX_ADDRESS_CHARS].partition("%")
    if zone:
        return bare.lstrip(SPACES).removeprefix("[")
    if len(text) > MAX_ADDRESS_CHARS:
        return ""
    bare = bare.strip(SPACES)
    wrapped = _WRAPPED.fullmatch(bare)
    return bare if wrapped is None else wrapped[1] or wrapped[2] or ""


#: Number of hops that are read, from the right. No site has more proxies in a row.
MAX_HOPS: Final = 32
FORWARDED: Final = "forwarded"
MAX_ELEMENT_CHARS: Final = 512

_WORD: Final = r"[\w!#$%&'*+.^`|~-]+"
# Brackets and colons are allowed without quotes, because some proxies write them so.
_PAIR: Final = rf'({_WORD})=("(?:[^"\\]|\\.)*"|[\w!#$%&\'*+.^`|~:\[\]-]+)'
_PAIRS: Final = re.compile(_PAIR, re.ASCII)
_ELEMENT: Final = re.compile(rf"[ \t]*{_PAIR}(?:[ \t]*;[ \t]*{_PAIR})*[ \t]*;?[ \t]*", re.ASCII)


def hops(header: str, value: str) -> Iterator[str]:
    """Return the addresses that hops wrote into a forwarding header, from the right. A malformed entry gives "".

    The header is split at every comma, even inside quotes: a client may send an unclosed quote, which must not hide
    the entries of the site's proxies.
    """
    return map(_READERS.get(header.lower(), str), reversed(value.rsplit(",", MAX_HOPS)[-MAX_HOPS:]))


def _for_parameter(element: str) -> str:
    """Return the "for" parameter of an element of Forwarded (RFC 7239, 4), or "" unless there is exactly one."""
    if len(element) > MAX_ELEMENT_CHARS or not _ELEMENT.fullmatch(element):
        return ""
    values = [value for name, value in _PAIRS.findall(element) if name.lower() == "for"]
    if len(values) != 1:
        return ""
    return re.sub(r"\\(.)", r"\1", values[0][1:-1]) if values[0].startswith('"') else values[0]


# CloudFront always adds the port, without brackets around IPv6.
_READERS: Final[dict[str, Callable[[str], str]]] = {
    FORWARDED: _for_parameter,
    "cloudfront-viewer-address": _before_port,
}

Network = IPv4Network | IPv6Network

UNIX: Final = "unix"
#: Peers on a Unix socket as waitress and some versions of gunicorn report them. Other servers report nothing.
LOCAL_PEERS: Final = ("localhost", "b''")


@dataclass(frozen=True, slots=True)
class Proxies:
    """Proxies of the site: their networks, or the number of proxies that a request passes."""

    networks: tuple[Network, ...] = ()
    count: int = 0
    is_declared: bool = False  #: True if TRUSTED_PROXIES names a proxy

    def trust(self, peer: object, address: Address | None) -> bool:
        """Return True if the header of a peer is used.

        That is so for listed proxies, for any peer if there is a ``count``, and for local processes if a proxy is
        declared.
        """
        if address is None:
            return self.is_declared and is_local(peer)
        return self.count > 0 or self.include(address)

    def include(self, address: Address) -> bool:
        return any(address in network for network in self.networks)

    def client(self, read: Callable[[], str], header: str, near: Address | None) -> Address | None:
        """Return the nearest address that is no proxy's, beginning at the trusted peer ``near``.

        ``read`` returns the header.
        """
        entries = hops(header, read())
        if self.count:
            return parse(next(islice(entries, self.count - 1, None), "")) or near
        for entry in entries:
            address = parse(entry)
            if address is None:  # the proxy does not know its client, so the proxy is the last known address
                return near
            near = address
            if not self.include(address):
                break
        return near


def client_address(peer: object, header: Callable[[str], str]) -> Address | None:
    """Return the client's address, or None if it is unknown. ``header`` returns all lines of a header with commas."""
    settings = conf()
    near = parse(peer)
    proxies = declared_proxies(settings.TRUSTED_PROXIES)
    if not proxies.trust(peer, near):
        return near
    return proxies.client(lambda: header(settings.PROXY_HEADER), settings.PROXY_HEADER, near)


def is_local(peer: object) -> bool:
    """Return True for a peer without an address. It is on a Unix socket, so it is a process of this host."""
    return not peer or peer in LOCAL_PEERS or str(peer).startswith(f"{UNIX}:")


def declared_proxies(setting: object) -> Proxies:
    """Return the proxies that TRUSTED_PROXIES names. Raise InvalidSetting for an invalid value."""
    if setting is None:
        return Proxies()
    if isinstance(setting, (list, tuple, set, frozenset)) and all(isinstance(text, str) for text in setting):
        return _proxies_of_networks(tuple(setting))
    if type(setting) is int and 0 <= setting <= MAX_HOPS:
        return Proxies(count=setting, is_declared=setting > 0)
    kinds = f"a list of networks, or a number from 0 to {MAX_HOPS}"
    raise InvalidSetting(f"TRUSTED_PROXIES is {kinds}, not {setting!r}")


@lru_cache(maxsize=16)
def _proxies_of_networks(texts: tuple[str, ...]) -> Proxies:
    return Proxies(tuple(_network(text) for text in texts if text != UNIX), is_declared=bool(texts))


def _network(text: str) -> Network:
    try:
        network = ip_network(text)
    except ValueError as error:
        raise InvalidSetting(f"TRUSTED_PROXIES has networks like 10.0.0.0/8; {error}") from None
    if unmapped(network).prefixlen == 0:
        raise InvalidSetting(f"TRUSTED_PROXIES: {text!r} includes every client, which could then forge its address")
    return unmapped(network)


def unmapped(network: Network) -> Network:
    """Return the network, or the IPv4 network that is mapped to it."""
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    return network if mapped is None or network.prefixlen < 96 else IPv4Network((int(mapped), network.prefixlen - 96))
