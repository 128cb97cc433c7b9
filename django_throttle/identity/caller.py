"""The caller of a request or a socket, and its idents under the keys of rules."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject, empty
from django.utils.module_loading import import_string

from django_throttle.conf import conf
from django_throttle.core.key import EVERYONE, KEY_KINDS
from django_throttle.identity import keys
from django_throttle.identity.address import MAX_TEXT, Address, client_address, network, notation, short_address
from django_throttle.identity.keys import (
    FAILED,
    JSON_TYPES,
    User,
    api_key,
    checked_value,
    combined,
    ident_of,
    session_key,
    shortened,
    site_value,
    text_of,
)

if TYPE_CHECKING:
    from django.contrib.sessions.backends.base import SessionBase

logger = logging.getLogger("django_throttle")

warned: Final[set[str]] = set()
_UNASKED: Final[Any] = object()


def refuses_without_address() -> bool:
    """True where the setting NO_ADDRESS refuses calls that a rule cannot count as their address is unknown."""
    return conf().NO_ADDRESS == "refuse"


class KeyedCaller(ABC):
    """A caller; subclasses read requests and scopes."""

    subject: object
    is_known: bool = False  # whether it was found to be logged in
    _address: Any = _UNASKED

    def ident(self, key: str) -> str | None:
        """The ident under a rule's key; None when the key does not apply to this caller.

        Where a function of the site fails, the ident is the address. So it is for a list, an object or a boolean, which
        a client may have sent as JSON.
        """
        if kind := KEY_KINDS.get(key):
            return kind.find(self)
        if "+" in key:
            return combined(key, map(self.ident, key.split("+")))
        value = site_value(f"the key {key!r}", partial(_called, key), self.subject, takes_json=True)
        return self.by_address(key) if value is FAILED else ident_of(key, value)

    def is_(self, trait: str) -> bool:
        """Whether it is "anonymous", "authenticated", "staff", in a "group:NAME" or of a "tenant:NAME"."""
        return keys.has_trait(trait, self)

    def lacks_address(self, key: str) -> bool:
        """Whether a rule of this key does not apply only because the address is unknown."""
        missing = [part for part in key.split("+") if self.ident(part) is None]
        return bool(missing) and all(part in KEY_KINDS and KEY_KINDS[part].has_address for part in missing)

    def address(self) -> Address | None:
        """The client's address behind the proxies that the site declared; None if unknown."""
        if self._address is _UNASKED:
            peer, proxies = str(self.peer() or ""), conf().TRUSTED_PROXIES
            is_it = proxies is None and len(peer) <= MAX_TEXT  # on the hot path
            self._address = short_address(peer) if is_it else client_address(self.peer(), self.header)
        address: Address | None = self._address
        return address

    def by_user(self) -> str | None:
        user = self.user()
        if user is None or not user.is_authenticated:
            return None
        self.is_known = True
        value = keys.counted_user(user) if conf().USER_IDENT else user.pk
        return self.by_address("user") if value is FAILED else ident_of("user", value)

    def by_address(self, key: str = "ip") -> str | None:
        address = self.address()
        if address is not None:
            return f"ip:{notation(address, conf().IPV6_PREFIX)}"
        if key not in warned:
            warned.add(key)
            logger.warning(
                "rules of key %r %s calls without the address of a client (the server reports %.60r); "
                "this process logs it once for each key; see NO_ADDRESS",
                key,
                "refuse" if refuses_without_address() else "do not apply to",
                self.peer(),
            )
        return None

    def by_api_key(self) -> str | None:
        accepted = self.read("auth")
        if (ident := api_key(accepted)) is None:
            return self.by_user() or self.by_address("api_key")
        keys.key_types.add(accepted.__class__)  # of a lazy object, that of the row in it
        return ident

    def by_session(self) -> str | None:
        return ident_of("session", session_key(self.read("session")))

    def by_tenant(self) -> str | None:
        value = keys.counted_tenant(self.subject)
        return self.by_address("tenant") if value is FAILED else ident_of("tenant", value)

    def by_connection(self) -> str | None:
        """The ident of the open socket; None for requests."""
        return None

    @abstractmethod
    def user(self) -> User | None: ...

    @abstractmethod
    def read(self, name: str) -> Any:
        """What authentication or the session middleware has put under this name; None where it is not there."""

    @abstractmethod
    def peer(self) -> object: ...

    @abstractmethod
    def header(self, name: str) -> str: ...


def _called(path: str, subject: object) -> object:
    return import_string(path)(subject)


# The module of Django's function that finds the user by the session.
AUTH_MIDDLEWARE: Final = "django.contrib.auth.middleware"


class RequestCaller(KeyedCaller):
    """The caller of a Django or DRF request; ``user`` if it is known already."""

    subject: HttpRequest

    def __init__(self, request: HttpRequest, user: User | None = None) -> None:
        self.subject = request
        self._user = user

    async def aload(self) -> None:
        """Load the user, if that is to be awaited; REST framework's requests have authenticated before."""
        request = self.subject
        if not hasattr(request, "_request") and hasattr(request, "auser") and not _is_nobody(request):
            self._user = await request.auser()

    def user(self) -> User | None:
        if self._user is not None:
            return self._user
        user: User | None = getattr(self.subject, "user", None)
        return None if type(user) is SimpleLazyObject and _is_nobody(self.subject) else user

    def read(self, name: str) -> Any:
        return getattr(self.subject, name, None)

    def peer(self) -> object:
        return self.subject.META.get("REMOTE_ADDR")

    def header(self, name: str) -> str:
        """All lines of a header; servers join them with commas."""
        return str(self.subject.META.get(f"HTTP_{name.upper().replace('-', '_')}", ""))


def _is_nobody(request: HttpRequest) -> bool:
    """Whether the user is to be read from a session that is empty; reading it would add Cookie to Vary."""
    user = getattr(request, "__dict__", {}).get("user")
    if type(user) is not SimpleLazyObject or user._wrapped is not empty:
        return False
    session: SessionBase | None = getattr(request, "session", None)  # REST framework looks for it in two places
    is_lazy = getattr(vars(user).get("_setupfunc"), "__module__", "") == AUTH_MIDDLEWARE
    return is_lazy and session is not None and session.is_empty()


# The scope's key of its open socket.
SOCKET: Final = "django_throttle"


# Seconds that the groups of a socket's user hold: an open socket has no next request that would ask for them.
GROUPS_LAST: Final = 1.0


class AsgiCaller(KeyedCaller):
    """The caller of an ASGI connection; made anew, it has the groups that the user has now."""

    subject: dict[str, Any]

    def __init__(self, scope: dict[str, Any]) -> None:
        self.subject = scope
        self.groups_since = monotonic() - GROUPS_LAST

    def user(self) -> User | None:
        user: User | None = self.subject.get("user")
        return user

    def read(self, name: str) -> Any:
        return self.subject.get(name)

    def by_connection(self) -> str | None:
        socket = self.subject.get(SOCKET)
        return None if socket is None else ident_of("connection", socket.id)

    def peer(self) -> object:
        return (self.subject.get("client") or (None,))[0]

    def header(self, name: str) -> str:
        """All lines of a header, joined in their order, as WSGI does."""
        wanted = name.lower().encode("latin-1", "replace")
        lines = self.subject.get("headers") or ()
        return ",".join([line.decode("latin-1") for key, line in lines if key.lower() == wanted])


MAX_KIND: Final = 64
# Prefix of a text from a view's function that looks like another caller's ident.
CLAIMED: Final = "ident"
# The one ident of all calls with a list or an object in place of a text, if the address is unknown.
NO_TEXT: Final = "no text"


@dataclass(frozen=True, slots=True)
class IdentCaller:
    """A caller of whom only the ident is known, such as "user:42", and the user where a function has returned one."""

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
        return trait == self.name and keys.is_audience(trait)

    def lacks_address(self, key: str) -> bool:
        return False


def given_ident(what: str, value: object, caller: KeyedCaller | None) -> str | None:
    """The ident for a value that a site's function returned; None for None, which is not limited.

    A text or a number is used as it is, or hashed if it is long; a user gives that user's ident. In a view, a text that
    looks like another caller's ident, such as "user:42", gets a prefix of its own. An empty text, or a list or an
    object of JSON, which a client may have sent, gives the caller's address. Raises InvalidIdent for anything else.
    """
    if is_user(value):
        user_value = keys.counted_user(value) if value.is_authenticated else None
        ident = None if user_value is FAILED else ident_of("user", user_value)
    elif value is None:
        return None
    else:
        ident = None if isinstance(value, JSON_TYPES) else _text(text_of(checked_value(what, value)))
    if ident is None:
        return (caller and caller.ident("ip")) or NO_TEXT
    return ident if caller is None or _is_free(ident, caller) else ident_of(CLAIMED, ident)


def is_user(value: object) -> TypeGuard[User]:
    """Whether it is a Django user, also AnonymousUser."""
    return hasattr(value, "is_authenticated")


def _text(text: str) -> str | None:
    kind, colon, value = text.partition(":")
    if not colon or len(kind) > MAX_KIND:
        return shortened(text) or None
    normalized = normalize_ident(text)
    return normalized if normalized != text else f"{kind}:{shortened(value)}"


def normalize_ident(text: str) -> str:
    """Return the ident with its IP address in one notation, and an IPv6 address cut to ``IPV6_PREFIX``."""
    kind, colon, value = text.partition(":")
    address = network(value, conf().IPV6_PREFIX) if colon and kind == "ip" else None
    return text if address is None else f"ip:{address}"


def _is_free(ident: str, caller: KeyedCaller) -> bool:
    """Whether no key gives this ident to another caller."""
    kind, colon, _ = ident.partition(":")
    if kind in KEY_KINDS:
        return caller.ident(kind) == ident
    return kind != CLAIMED and not (colon and ("." in kind or "+" in kind))
