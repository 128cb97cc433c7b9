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

# An IPv6 address has at most 45 characters, and may have brackets, a port and spaces. Longer texts are not parsed.
MAX_TEXT: Final = 64
SPACES: Final = " \t"
# RFC 6052, 2.1: IPv4 clients behind a translator have an address in this network.
TRANSLATED: Final = IPv6Network("64:ff9b::/96")
# Some servers and proxies report "[2001:db8::1]", "[2001:db8::1]:443" or "192.0.2.1:443".
_WRAPPED: Final = re.compile(r"\[([^\]]*)\](?::[0-9]{1,5})?|([^:]*):[0-9]{1,5}")


def parse(text: object) -> Address | None:
    """The address; None if the text is none.

    An IPv6 address that maps or translates an IPv4 address gives that. Zone ids, brackets, ports and spaces are
    dropped, a port behind IPv6 without brackets where it can be nothing else. IPv4 with leading zeros gives None: some
    programs read them as octal, others as decimal.
    """
    text = str(text or "")
    return short_address(text) if len(text) <= MAX_TEXT else _parse(_unwrapped(text))


def network(address: object, ipv6_prefix: int) -> str | None:
    """The address in one notation: IPv4 whole, IPv6 by its prefix; None when it is not an address."""
    parsed = address if isinstance(address, (IPv4Address, IPv6Address)) else parse(address)
    return None if parsed is None else notation(parsed, ipv6_prefix)


@lru_cache(maxsize=4096)
def notation(address: Address, ipv6_prefix: int) -> str:
    """IPv4 whole, IPv6 by its prefix."""
    if isinstance(address, IPv4Address):
        return str(address)
    spare = 128 - ipv6_prefix
    return f"{IPv6Address(int(address) >> spare << spare)}/{ipv6_prefix}"


@lru_cache(maxsize=4096)
def short_address(text: str) -> Address | None:
    """``parse`` with a cache, for texts of at most MAX_TEXT characters."""
    return _parse(_unwrapped(text))


def _parse(bare: str) -> Address | None:
    try:
        address = ip_address(bare)
    except ValueError:
        address_part = _before_port(bare)
        return _parse(address_part) if address_part != bare and ":" in address_part else None
    if isinstance(address, IPv6Address):
        return IPv4Address(int(address) & 0xFFFF_FFFF) if address in TRANSLATED else address.ipv4_mapped or address
    return address


def _before_port(text: str) -> str:
    """Return what stands before the last colon, if a port may follow it; else the whole text."""
    before, _, port = text.rpartition(":")
    return before if len(port) <= 5 and port.isascii() and port.isdecimal() else text


def _unwrapped(text: str) -> str:
    bare, zone, _ = text[:MAX_TEXT].partition("%")
    if zone:
        return bare.lstrip(SPACES).removeprefix("[")
    if len(text) > MAX_TEXT:
        return ""
    bare = bare.strip(SPACES)
    wrapped = _WRAPPED.fullmatch(bare)
    return bare if wrapped is None else wrapped[1] or wrapped[2] or ""


# Hops that are read, from the right: more than any site has in a row.
MAX_HOPS: Final = 32
FORWARDED: Final = "forwarded"
MAX_ELEMENT: Final = 512

_WORD: Final = r"[\w!#$%&'*+.^`|~-]+"
# Brackets and colons also without quotes, as some proxies write them.
_PAIR: Final = rf'({_WORD})=("(?:[^"\\]|\\.)*"|[\w!#$%&\'*+.^`|~:\[\]-]+)'
_PAIRS: Final = re.compile(_PAIR, re.ASCII)
_ELEMENT: Final = re.compile(rf"[ \t]*{_PAIR}(?:[ \t]*;[ \t]*{_PAIR})*[ \t]*;?[ \t]*", re.ASCII)


def hops(header: str, value: str) -> Iterator[str]:
    """The address that each hop wrote into a forwarding header, from the right; empty where it is malformed.

    Splits at every comma, also inside quotes: a client may send an unclosed quote, which must not hide what the site's
    proxies append.
    """
    return map(_READERS.get(header.lower(), str), reversed(value.rsplit(",", MAX_HOPS)[-MAX_HOPS:]))


def _for(element: str) -> str:
    """The "for" parameter of an element of Forwarded (RFC 7239, 4); empty unless there is one."""
    if len(element) > MAX_ELEMENT or not _ELEMENT.fullmatch(element):
        return ""
    values = [value for name, value in _PAIRS.findall(element) if name.lower() == "for"]
    if len(values) != 1:
        return ""
    return re.sub(r"\\(.)", r"\1", values[0][1:-1]) if values[0].startswith('"') else values[0]


# CloudFront always adds the port, and puts no brackets around IPv6.
_READERS: Final[dict[str, Callable[[str], str]]] = {FORWARDED: _for, "cloudfront-viewer-address": _before_port}

Network = IPv4Network | IPv6Network

UNIX: Final = "unix"
# What servers report as the peer on a Unix socket: most nothing; waitress and some versions of gunicorn these.
LOCAL: Final = ("localhost", "b''")


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies of this site: their networks, or how many of them a request passes in a row."""

    networks: tuple[Network, ...] = ()
    count: int = 0
    declared: bool = False

    def trust(self, peer: object, address: Address | None) -> bool:
        """Whether the peer's header is used: a listed proxy's, any peer's with ``count``, a local process' too."""
        if address is None:
            return self.declared and is_local(peer)
        return self.count > 0 or self.include(address)

    def include(self, address: Address) -> bool:
        return any(address in network for network in self.networks)

    def client(self, read: Callable[[], str], header: str, near: Address | None) -> Address | None:
        """The nearest address that is not a proxy's, from a trusted peer ``near``; ``read`` returns the header."""
        entries = hops(header, read())
        if self.count:
            return parse(next(islice(entries, self.count - 1, None), "")) or near
        for entry in entries:
            address = parse(entry)
            if address is None:  # this proxy does not know its client, so it is the last known address
                return near
            near = address
            if not self.include(address):
                break
        return near


def client_address(peer: object, header: Callable[[str], str]) -> Address | None:
    """The client's address; None if unknown. ``header`` gives all lines of a header, joined by commas."""
    settings = conf()
    near = parse(peer)
    proxies = declared(settings.TRUSTED_PROXIES)
    if not proxies.trust(peer, near):
        return near
    return proxies.client(lambda: header(settings.PROXY_HEADER), settings.PROXY_HEADER, near)


def is_local(peer: object) -> bool:
    """Whether the peer has no address: it is on a Unix socket, so a process of this host."""
    return not peer or peer in LOCAL or str(peer).startswith(f"{UNIX}:")


def declared(setting: object) -> Proxies:
    """The proxies that TRUSTED_PROXIES names; raises InvalidSetting for a value that is not allowed."""
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
        network = ip_network(text)
    except ValueError as error:
        raise InvalidSetting(f"TRUSTED_PROXIES has networks like 10.0.0.0/8; {error}") from None
    if unmapped(network).prefixlen == 0:
        raise InvalidSetting(f"TRUSTED_PROXIES: {text!r} is everyone, who could then claim to be anyone")
    return unmapped(network)


def unmapped(network: Network) -> Network:
    """The IPv4 network, where the IPv6 network is one that is mapped from IPv4."""
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    return network if mapped is None or network.prefixlen < 96 else IPv4Network((int(mapped), network.prefixlen - 96))
