"""Who is asking: one resolver for HTTP requests and ASGI scopes, so that both count under the same ident.

Idents carry their kind, so user 5 and the address "5" never meet.
"""

from __future__ import annotations

import hashlib
import inspect
import ipaddress
import logging
import re
from abc import ABC, abstractmethod
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from django.http import HttpRequest
from django.utils.module_loading import import_string

from django_throttle.conf import conf
from django_throttle.exceptions import InvalidIdent

logger = logging.getLogger("django_throttle")

# The longest text of an IPv6 address; anything longer is cut off before it is parsed.
MAX_ADDRESS: Final = 45
MAX_VALUE: Final = 512
EVERYONE: Final = "everyone"
# What has one text, today and in every process; the repr of any other object may hold its place in memory.
PLAIN: Final = (str, int, float, Decimal, UUID)
# Some servers and proxies report "[2001:db8::1]", "[2001:db8::1]:443" or "192.0.2.1:443".
_DRESSED: Final = re.compile(r"\[([^\]]*)\](?::[0-9]{1,5})?|([^:]*):[0-9]{1,5}")
_warned: Final[set[str]] = set()


def network(address: object, ipv6_prefix: int) -> str | None:
    """The address in one notation: IPv4 whole, IPv6 by its prefix; None when it is not an address.

    IPv4-mapped addresses are IPv4; zone ids, brackets and ports are dropped, so that one peer has one text.
    """
    text = str(address or "")
    dressed = _DRESSED.fullmatch(text)
    text = (text if dressed is None else dressed[1] or dressed[2] or "").partition("%")[0]
    try:
        parsed = ipaddress.ip_address(text if len(text) <= MAX_ADDRESS else "")
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), ipv6_prefix), strict=False))


def is_async(found: Any) -> bool:
    """True when calling it gives something to await, which never names a caller."""
    called = getattr(found, "__call__", None)  # noqa: B004 - of an object whose class defines it
    return any(map(inspect.iscoroutinefunction, (found, called))) or inspect.isasyncgenfunction(found)


class _Caller(ABC):
    """One who calls; subclasses know where to look."""

    subject: Any

    def ident(self, key: str) -> str | None:
        """The ident under a rule's key; None when the key does not apply to this caller.

        Raises InvalidIdent when a function of the site's own returns neither a text nor a number.
        """
        if key == "user_or_ip":
            return self.ident("user") or self._ident("ip", self._address(key))
        if key == EVERYONE:
            return EVERYONE
        if "." in key:
            return self._ident(key, _plain(key, import_string(key)(self.subject)))
        return self._ident(key, self._address(key) if key == "ip" else self._values()[key]())

    @staticmethod
    def _ident(kind: str, value: object) -> str | None:
        return None if value is None or value == "" else f"{kind}:{_bounded(str(value))}"

    def _address(self, key: str) -> str | None:
        found = self.network()
        if found is None and key not in _warned:
            _warned.add(key)
            logger.warning(
                "rules of key %r do not apply to calls without the address of a client (the server reports %.60r); "
                "said once in this process",
                key,
                self.address(),
            )
        return found

    def _values(self) -> dict[str, Any]:
        return {"user": self.user_id, "session": self.session_key}

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


def _plain(key: str, value: object) -> object:
    """The value itself. Raises InvalidIdent for one that differs from call to call, and so would never be limited."""
    if value is None or (isinstance(value, PLAIN) and not isinstance(value, bool)):
        return value
    if inspect.iscoroutine(value):
        value.close()
    kind = type(value).__name__
    hint = "; it must not be async" if inspect.isawaitable(value) else ""
    raise InvalidIdent(f"the key {key!r} returns a text, a number or None, not {kind}{hint}")


def _bounded(value: str) -> str:
    if len(value) <= MAX_VALUE:
        return value
    return "~" + hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
