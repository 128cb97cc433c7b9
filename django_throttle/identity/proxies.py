"""Which address is the client's: the peer's, or what proxies that the site has declared say of it.

A header is read from the right, because each proxy adds to it there; what stands further left than the last proxy of
ours is whatever the client wants it to be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from itertools import islice
from typing import Final

from django_throttle.conf import conf
from django_throttle.exceptions import InvalidSetting
from django_throttle.identity.address import Address, parse
from django_throttle.identity.forwarded import MAX_HOPS, hops

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
    proxies = declared(settings.TRUSTED_PROXIES)
    near = parse(peer)
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
