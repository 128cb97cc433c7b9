"""Callers, and the idents that they have under the keys of rules."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from django.utils.module_loading import import_string

from django_throttle.conf import conf
from django_throttle.identity import own, traits
from django_throttle.identity.address import Address, network
from django_throttle.identity.credentials import api_key
from django_throttle.identity.idents import combined, plain, tagged
from django_throttle.identity.proxies import client_address
from django_throttle.identity.sessions import key_of

logger = logging.getLogger("django_throttle")

EVERYONE: Final = "everyone"
# Keys that fall back on the address.
ADDRESSED: Final = frozenset(("ip", "user_or_ip", "api_key"))
# What a client may send as JSON in place of a text.
SENT: Final = (list, dict, bool)
REFUSE: Final = "refuse"
_warned: Final[set[str]] = set()
_UNASKED: Final[Any] = object()


class Caller(ABC):
    """One who calls; subclasses know where to look."""

    subject: Any
    _address: Any = _UNASKED

    def ident(self, key: str) -> str | None:
        """The ident under a rule's key; None when the key does not apply to this caller.

        Raises InvalidIdent when a function of the site's own returns neither a text nor a number. What a client may
        have sent instead, a list or an object of JSON, names nobody: then the address does.
        """
        if find := _FINDERS.get(key):
            return find(self)
        if "+" in key:
            return combined(key, map(self.ident, key.split("+")))
        value = import_string(key)(self.subject)
        return self._by_address(key) if isinstance(value, SENT) else tagged(key, plain(f"the key {key!r}", value))

    def is_(self, trait: str) -> bool:
        """Whether it is "anonymous", "authenticated", "staff", in a "group:NAME" or of a "tenant:NAME"."""
        return traits.has(trait, self.user(), self._tenant)

    def lacks_address(self, key: str) -> bool:
        """True when a rule of this key does not apply for no other reason than that nobody knows the address."""
        missing = [part for part in key.split("+") if self.ident(part) is None]
        return bool(missing) and ADDRESSED.issuperset(missing)

    def address(self) -> Address | None:
        """The client's address, through the proxies that the site declared; None where nobody knows it."""
        if self._address is _UNASKED:
            self._address = client_address(self.peer(), self.header)
        found: Address | None = self._address
        return found

    def _by_user(self) -> str | None:
        user = self.user()
        return tagged("user", own.name_of(user)) if user is not None and user.is_authenticated else None

    def _by_address(self, key: str = "ip") -> str | None:
        found = self.address()
        if found is None:
            self._warn(key)
            return None
        return tagged("ip", network(found, conf().IPV6_PREFIX))

    def _by_user_or_address(self) -> str | None:
        return self._by_user() or self._by_address("user_or_ip")

    def _by_api_key(self) -> str | None:
        return api_key(self.auth()) or self._by_user() or self._by_address("api_key")

    def _by_session(self) -> str | None:
        return tagged("session", key_of(self.session()))

    def _by_tenant(self) -> str | None:
        return tagged("tenant", self._tenant())

    def _tenant(self) -> object:
        return own.tenant_of(self.subject)

    def _warn(self, key: str) -> None:
        if key not in _warned:
            _warned.add(key)
            logger.warning(
                "rules of key %r %s calls without the address of a client (the server reports %.60r); "
                "said once in this process",
                key,
                "refuse" if conf().NO_ADDRESS == REFUSE else "do not apply to",
                self.peer(),
            )

    def _by_connection(self) -> str | None:
        return tagged("connection", self.connection())

    def connection(self) -> str | None:
        """The id of the open socket; None for whatever is none."""
        return None

    @abstractmethod
    def user(self) -> Any: ...

    @abstractmethod
    def auth(self) -> Any: ...

    @abstractmethod
    def session(self) -> Any: ...

    @abstractmethod
    def peer(self) -> object: ...

    @abstractmethod
    def header(self, name: str) -> str: ...


_FINDERS: Final[dict[str, Callable[[Caller], str | None]]] = {
    "user": Caller._by_user,
    "ip": Caller._by_address,
    "user_or_ip": Caller._by_user_or_address,
    "session": Caller._by_session,
    "api_key": Caller._by_api_key,
    "tenant": Caller._by_tenant,
    "connection": Caller._by_connection,
    EVERYONE: lambda caller: EVERYONE,
}
