"""Who is asking: one resolver for HTTP requests and ASGI scopes, so that both count under the same ident.

Idents carry their kind, so user 5 and the address "5" never meet.
"""

from __future__ import annotations

import hashlib
import ipaddress
from abc import ABC, abstractmethod
from typing import Any, Final

from django.http import HttpRequest
from django.utils.module_loading import import_string

from django_throttle.conf import conf

# The longest text of an IPv6 address; anything longer is cut off before it is parsed.
MAX_ADDRESS: Final = 45
MAX_VALUE: Final = 512
EVERYONE: Final = "everyone"


def network(address: object, ipv6_prefix: int) -> str | None:
    """The address in one notation: IPv4 whole, IPv6 by its prefix; None when it is not an address.

    IPv4-mapped addresses are IPv4 and zone ids are dropped, so that one peer has one text.
    """
    text = str(address or "").partition("%")[0]
    try:
        parsed = ipaddress.ip_address(text if len(text) <= MAX_ADDRESS else "")
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), ipv6_prefix), strict=False))


class _Caller(ABC):
    """One who calls; subclasses know where to look."""

    subject: Any

    def ident(self, key: str) -> str | None:
        """The ident under a rule's key; None when the key does not apply to this caller."""
        if key == "user_or_ip":
            return self.ident("user") or self.ident("ip")
        if key == EVERYONE:
            return EVERYONE
        value = import_string(key)(self.subject) if "." in key else self._values()[key]()
        return None if value is None or value == "" else f"{key}:{_bounded(str(value))}"

    def _values(self) -> dict[str, Any]:
        return {"user": self.user_id, "ip": self.network, "session": self.session_key}

    def user_id(self) -> object:
        user = self.user()
        return user.pk if user is not None and user.is_authenticated else None

    def network(self) -> str | None:
        return network(self.address(), conf().IPV6_PREFIX)

    def session_key(self) -> str | None:
        session = self.session()
        return None if session is None else session.session_key

    @abstractmethod
    def user(self) -> Any: ...

    @abstractmethod
    def address(self) -> object: ...

    @abstractmethod
    def session(self) -> Any: ...


class HttpWho(_Caller):
    """The caller of a Django or DRF request; ``user`` when it is known already."""

    def __init__(self, request: HttpRequest, user: Any = None) -> None:
        self.subject = request
        self._user = user

    @classmethod
    async def aread(cls, request: HttpRequest) -> HttpWho:
        """The same on an event loop, where the session may only be read by awaiting it."""
        return cls(request, await request.auser() if hasattr(request, "auser") else None)

    def user(self) -> Any:
        return getattr(self.subject, "user", None) if self._user is None else self._user

    def address(self) -> object:
        return self.subject.META.get("REMOTE_ADDR")

    def session(self) -> Any:
        return getattr(self.subject, "session", None)


class ScopeWho(_Caller):
    """The caller of an ASGI connection."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.subject = scope

    def user(self) -> Any:
        return self.subject.get("user")

    def address(self) -> object:
        return (self.subject.get("client") or (None,))[0]

    def session(self) -> Any:
        return self.subject.get("session")


def _bounded(value: str) -> str:
    if len(value) <= MAX_VALUE:
        return value
    return "~" + hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
