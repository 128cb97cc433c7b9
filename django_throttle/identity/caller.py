"""Callers of requests and sockets, and their idents under the keys of rules."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from django.db.models import Model
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject, empty

from django_throttle.conf import conf
from django_throttle.core.key import EVERYONE, KEY_KINDS
from django_throttle.identity import keys
from django_throttle.identity.address import MAX_ADDRESS_CHARS, Address, client_address, network, notation, parse_short
from django_throttle.identity.keys import User, api_key, combined, ident_of, session_key, shortened, text_of
from django_throttle.identity.site_functions import FAILED, JSON_TYPES, call_by_path, checked_value, site_value

if TYPE_CHECKING:
    from django.contrib.sessions.backends.base import SessionBase

logger = logging.getLogger("django_throttle")

warned_keys: Final[set[str]] = set()
_UNREAD: Final[Any] = object()


def refuses_without_address() -> bool:
    """Return True if the setting NO_ADDRESS refuses calls that a rule cannot count because their address is unknown."""
    return conf().NO_ADDRESS == "refuse"


class KeyedCaller(ABC):
    """Caller with an ident for each key. Subclasses read requests and ASGI scopes."""

    subject: object
    is_logged_in: bool = False  #: True once the user was read and is authenticated
    _address: Any = _UNREAD

    def ident(self, key: str) -> str | None:
        """Return the ident under a rule's key, or None if the key does not apply to this caller.

        If a function of the site fails, return the ident of the address. Do the same if it returns a list, an object or
        a boolean, which a client may have sent as JSON.
        """
        if kind := KEY_KINDS.get(key):
            return kind.find(self)
        if "+" in key:
            return combined(key, map(self.ident, key.split("+")))
        value = site_value(f"the key {key!r}", partial(call_by_path, key), self.subject, takes_json=True)
        return self.by_address(key) if value is FAILED else ident_of(key, value)

    def is_(self, trait: str) -> bool:
        """Return True for a trait of the caller: "anonymous", "authenticated", "staff", "group:NAME", "tenant:NAME"."""
        return keys.has_trait(trait, self)

    def lacks_address(self, key: str) -> bool:
        """Return True if a rule of this key would apply, but for the unknown address."""
        missing = [part for part in key.split("+") if self.ident(part) is None]
        return bool(missing) and all(part in KEY_KINDS and KEY_KINDS[part].has_address for part in missing)

    def address(self) -> Address | None:
        """Return the client's address behind the proxies that the site declared, or None if it is unknown."""
        if self._address is _UNREAD:
            peer, proxies = str(self.peer() or ""), conf().TRUSTED_PROXIES
            is_direct = proxies is None and len(peer) <= MAX_ADDRESS_CHARS  # on the hot path
            self._address = parse_short(peer) if is_direct else client_address(self.peer(), self.header)
        address: Address | None = self._address
        return address

    def by_user(self) -> str | None:
        user = self.user()
        if user is None or not user.is_authenticated:
            return None
        self.is_logged_in = True
        return ident_of("user", user.pk)

    def by_address(self, key: str = "ip") -> str | None:
        address = self.address()
        if address is not None:
            return f"ip:{notation(address, conf().IPV6_PREFIX)}"
        if key not in warned_keys:
            warned_keys.add(key)
            logger.warning(
                "rules of key %r %s calls without the address of a client (the server reports %.60r); "
                "this process logs it once for each key; see NO_ADDRESS",
                key,
                "refuse" if refuses_without_address() else "do not apply to",
                self.peer(),
            )
        return None

    def by_api_key(self) -> str | None:
        credential = self.read("auth")
        if (ident := api_key(credential)) is None:
            return self.by_user() or self.by_address("api_key")
        keys.key_types.add(credential.__class__)  # the class of the wrapped row if the object is lazy
        return ident

    def by_session(self) -> str | None:
        return ident_of("session", session_key(self.read("session")))

    def by_tenant(self) -> str | None:
        value = keys.counted_tenant(self.subject)
        return self.by_address("tenant") if value is FAILED else ident_of("tenant", value)

    def by_connection(self) -> str | None:
        """Return the ident of the open socket, or None for a request."""
        return None

    def row(self, ident: str) -> Model | None:
        """Return the user, API key or tenant that counts under this ident, or None if it is not a row of a model."""
        row: object = None
        with suppress(Exception):  # of a function of the site, which is logged when the call is counted
            match ident.partition(":")[0]:
                case "user":
                    row = self.user()
                case "api_key":
                    row = self.read("auth")
                case "tenant":
                    row = keys.tenant_object(self.subject)
        return row if isinstance(row, Model) else None

    @abstractmethod
    def user(self) -> User | None: ...

    @abstractmethod
    def read(self, name: str) -> Any:
        """Return the attribute that authentication or the session middleware has set, or None."""

    @abstractmethod
    def peer(self) -> object: ...

    @abstractmethod
    def header(self, name: str) -> str: ...


#: Module of Django's function that reads the user from the session.
AUTH_MIDDLEWARE: Final = "django.contrib.auth.middleware"


class RequestCaller(KeyedCaller):
    """Caller of a Django or REST framework request."""

    subject: HttpRequest

    def __init__(self, request: HttpRequest) -> None:
        self.subject = request
        self._user: User | None = None

    async def aload(self) -> None:
        """Load the user if that must be awaited. REST framework's requests are authenticated already."""
        request = self.subject
        if not hasattr(request, "_request") and hasattr(request, "auser") and not _is_certainly_anonymous(request):
            self._user = await request.auser()

    def user(self) -> User | None:
        if self._user is not None:
            return self._user
        user: User | None = getattr(self.subject, "user", None)
        return None if type(user) is SimpleLazyObject and _is_certainly_anonymous(self.subject) else user

    def read(self, name: str) -> Any:
        return getattr(self.subject, name, None)

    def peer(self) -> object:
        return self.subject.META.get("REMOTE_ADDR")

    def header(self, name: str) -> str:
        """Return all lines of a header, which servers join with commas."""
        return str(self.subject.META.get(f"HTTP_{name.upper().replace('-', '_')}", ""))


def _is_certainly_anonymous(request: HttpRequest) -> bool:
    """Return True if the user is lazy and the session empty. Reading the user would add Cookie to Vary."""
    user = getattr(request, "__dict__", {}).get("user")
    if type(user) is not SimpleLazyObject or user._wrapped is not empty:
        return False
    session: SessionBase | None = getattr(request, "session", None)  # REST framework looks for it in two places
    is_lazy = getattr(vars(user).get("_setupfunc"), "__module__", "") == AUTH_MIDDLEWARE
    return is_lazy and session is not None and session.is_empty()


#: Key of the open socket in its ASGI scope.
SOCKET_SCOPE_KEY: Final = "django_throttle"


#: Seconds for which a socket's user keeps its groups. An open socket has no next request that would read them again.
GROUPS_SECONDS: Final = 1.0


class AsgiCaller(KeyedCaller):
    """Caller of an ASGI connection. A new instance reads the groups of the user again."""

    subject: dict[str, Any]

    def __init__(self, scope: dict[str, object]) -> None:
        self.subject = scope
        self.groups_since = monotonic() - GROUPS_SECONDS

    def user(self) -> User | None:
        user: User | None = self.subject.get("user")
        return user

    def read(self, name: str) -> Any:
        return self.subject.get(name)

    def by_connection(self) -> str | None:
        socket = self.subject.get(SOCKET_SCOPE_KEY)
        return None if socket is None else ident_of("connection", socket.id)

    def peer(self) -> object:
        return (self.subject.get("client") or (None,))[0]

    def header(self, name: str) -> str:
        """Return all lines of a header, joined in their order as in WSGI."""
        raw_name = name.lower().encode("latin-1", "replace")
        lines = self.subject.get("headers") or ()
        return ",".join([line.decode("latin-1") for key, line in lines if key.lower() == raw_name])


MAX_KIND_CHARS: Final = 64
#: Kind of idents for texts from a view's function that look like another caller's ident.
UNTRUSTED_KIND: Final = "ident"
#: Shared ident of calls with a list or an object in place of a text, if the address is unknown.
NO_TEXT: Final = "no text"


@dataclass(frozen=True, slots=True)
class IdentCaller:
    """Caller with nothing but an ident, such as "user:42", and its user if a function of the site has returned one."""

    name: str
    subject: object = None
    account: User | None = None

    def ident(self, key: str) -> str | None:
        if key == EVERYONE:
            return EVERYONE
        kind = KEY_KINDS.get(self.name.partition(":")[0])
        return self.name if kind is None or key in (kind.name, *kind.answers) else None

    def user(self) -> User | None:
        return self.account

    def is_(self, trait: str) -> bool:
        if self.account is not None and not keys.is_audience(trait):
            return keys.has_trait(trait, self)
        if trait in ("authenticated", "anonymous"):
            return self.name.startswith("user:") == (trait == "authenticated")
        return keys.is_audience(trait) and trait in (self.name, keys.tenant_of_user(self.account))

    def may_be(self, trait: str) -> bool:
        """Return True for a trait of the caller, and for one that does not follow from the ident and the user."""
        kind = trait.partition(":")[0]
        if kind == "tenant":
            is_known = self.name.startswith("tenant:") or (self.account is not None and keys.is_tenant_of_user())
            return self.is_(trait) or bool(conf().TENANT and not is_known)
        is_unknown = self.account is None and self.name.startswith("user:") and kind in ("staff", "group")
        return self.is_(trait) or is_unknown

    def lacks_address(self, key: str) -> bool:
        return False


def ident_from_value(source: str, value: object, caller: KeyedCaller | None) -> str | None:
    """Return the ident for a value that a site's function returned. Return None for None, which is not limited.

    A text or a number is used as it is, or hashed if it is long. A user gives the user's ident. In a view, a text that
    looks like another caller's ident, such as "user:42", gets a separate prefix. An empty text, a list, an object or a
    boolean, which a client may have sent as JSON, gives the caller's address. Raise InvalidIdent for other types.
    """
    if is_user(value):
        ident = ident_of("user", value.pk) if value.is_authenticated else None
    elif value is None:
        return None
    else:
        ident = None if isinstance(value, JSON_TYPES) else _text(text_of(checked_value(source, value)))
    if ident is None:
        return (caller and caller.ident("ip")) or NO_TEXT
    return ident if caller is None or _is_own_ident(ident, caller) else ident_of(UNTRUSTED_KIND, ident)


def is_user(value: object) -> TypeGuard[User]:
    """Return True for a Django user, also for AnonymousUser."""
    return hasattr(value, "is_authenticated")


def _text(text: str) -> str | None:
    kind, colon, value = text.partition(":")
    if not colon or len(kind) > MAX_KIND_CHARS:
        return shortened(text) or None
    normalized = normalize_ident(text)
    return normalized if normalized != text else f"{kind}:{shortened(value)}"


def normalize_ident(text: str) -> str:
    """Return the ident with its IP address in normal form, and an IPv6 address cut to ``IPV6_PREFIX``."""
    kind, colon, value = text.partition(":")
    address = network(value, conf().IPV6_PREFIX) if colon and kind == "ip" else None
    return text if address is None else f"ip:{address}"


def _is_own_ident(ident: str, caller: KeyedCaller) -> bool:
    """Return True if no key gives the ident to another caller."""
    kind, colon, _ = ident.partition(":")
    if kind in KEY_KINDS:
        return caller.ident(kind) == ident
    return kind != UNTRUSTED_KIND and not (colon and ("." in kind or "+" in kind))
