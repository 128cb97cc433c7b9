"""The caller of a request or a socket: its ident under every key."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject, empty
from django.utils.module_loading import import_string

from django_throttle.conf import conf
from django_throttle.core.key import KEY_KINDS
from django_throttle.identity import keys
from django_throttle.identity.address import MAX_TEXT, Address, client_address, notation, short_address
from django_throttle.identity.keys import api_key, bounded, combined, key_of, plain, tagged, text_of

logger = logging.getLogger("django_throttle")

EVERYONE: Final = "everyone"
# What a client may send as JSON in place of a text.
SENT: Final = (list, dict, bool)
REFUSE: Final = "refuse"
warned: Final[set[str]] = set()
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
        if kind := KEY_KINDS.get(key):
            return kind.find(self)
        if "+" in key:
            return combined(key, map(self.ident, key.split("+")))
        value = import_string(key)(self.subject)
        return self.by_address(key) if isinstance(value, SENT) else tagged(key, plain(f"the key {key!r}", value))

    def is_(self, trait: str) -> bool:
        """Whether it is "anonymous", "authenticated", "staff", in a "group:NAME" or of a "tenant:NAME"."""
        return keys.has(trait, self)

    def lacks_address(self, key: str) -> bool:
        """True when a rule of this key does not apply for no other reason than that nobody knows the address."""
        missing = [part for part in key.split("+") if self.ident(part) is None]
        return bool(missing) and all(part in KEY_KINDS and KEY_KINDS[part].has_address for part in missing)

    def address(self) -> Address | None:
        """The client's address, through the proxies that the site declared; None where nobody knows it."""
        if self._address is _UNASKED:
            peer, proxies = str(self.peer() or ""), conf().TRUSTED_PROXIES
            is_it = proxies is None and len(peer) <= MAX_TEXT  # on the hot path
            self._address = short_address(peer) if is_it else client_address(self.peer(), self.header)
        found: Address | None = self._address
        return found

    def by_user(self) -> str | None:
        user = self.user()
        return tagged("user", keys.name_of(user)) if user is not None and user.is_authenticated else None

    def by_address(self, key: str = "ip") -> str | None:
        found = self.address()
        if found is None:
            self._warn(key)
            return None
        return f"ip:{notation(found, conf().IPV6_PREFIX)}"

    def by_user_or_address(self) -> str | None:
        return self.by_user() or self.by_address("user_or_ip")

    def by_api_key(self) -> str | None:
        return api_key(self.auth()) or self.by_user() or self.by_address("api_key")

    def by_session(self) -> str | None:
        return tagged("session", key_of(self.session()))

    def by_tenant(self) -> str | None:
        return tagged("tenant", keys.tenant_of(self.subject))

    def by_nobody(self) -> str | None:
        return EVERYONE

    def _warn(self, key: str) -> None:
        if key not in warned:
            warned.add(key)
            logger.warning(
                "rules of key %r %s calls without the address of a client (the server reports %.60r); "
                "said once in this process",
                key,
                "refuse" if conf().NO_ADDRESS == REFUSE else "do not apply to",
                self.peer(),
            )

    def by_connection(self) -> str | None:
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


# Where Django says how it would find the user: by the session.
OWN: Final = "django.contrib.auth.middleware"


class HttpWho(Caller):
    """The caller of a Django or DRF request; ``user`` when it is known already."""

    def __init__(self, request: HttpRequest, user: Any = None) -> None:
        self.subject = request
        self._user = user

    @classmethod
    async def aread(cls, request: HttpRequest) -> HttpWho:
        """The same on an event loop, where the session may only be read by awaiting it.

        REST framework has asked its own ways to authenticate by then.
        """
        found = cls(request)
        await found.aload()
        return found

    async def aload(self) -> None:
        """Find out who the user is, where that is to be awaited."""
        request: Any = self.subject
        if not hasattr(request, "_request") and hasattr(request, "auser") and not _is_nobody(request):
            self._user = await request.auser()

    def user(self) -> Any:
        if self._user is not None:
            return self._user
        return None if _is_nobody(self.subject) else getattr(self.subject, "user", None)

    def auth(self) -> Any:
        return getattr(self.subject, "auth", None)

    def session(self) -> Any:
        return getattr(self.subject, "session", None)

    def peer(self) -> object:
        return self.subject.META.get("REMOTE_ADDR")

    def header(self, name: str) -> str:
        """All lines of a header; servers join them with commas."""
        return str(self.subject.META.get(f"HTTP_{name.upper().replace('-', '_')}", ""))


def _is_nobody(request: Any) -> bool:
    """Whether the user is the session's, and there is no session: known without a look, which would be told in Vary."""
    user, session = getattr(request, "__dict__", {}).get("user"), getattr(request, "session", None)
    if session is None or type(user) is not SimpleLazyObject or user._wrapped is not empty:
        return False
    return getattr(vars(user).get("_setupfunc"), "__module__", "") == OWN and bool(session.is_empty())


# Where a scope has the open socket that it belongs to.
SOCKET: Final = "django_throttle"


class ScopeWho(Caller):
    """The caller of an ASGI connection."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.subject = scope

    def user(self) -> Any:
        return self.subject.get("user")

    def auth(self) -> Any:
        return self.subject.get("auth")

    def session(self) -> Any:
        return self.subject.get("session")

    def connection(self) -> str | None:
        socket = self.subject.get(SOCKET)
        return None if socket is None else socket.id

    def peer(self) -> object:
        return (self.subject.get("client") or (None,))[0]

    def header(self, name: str) -> str:
        """All lines of a header, joined in their order, as WSGI does."""
        wanted = name.lower().encode("latin-1", "replace")
        lines = self.subject.get("headers") or ()
        return ",".join([line.decode("latin-1") for key, line in lines if key.lower() == wanted])


MAX_KIND: Final = 64
# The kind of a text that a view's function gave, and that has the shape of somebody else's ident.
CLAIMED: Final = "ident"
# Counts together all calls that give a list or an object in place of a text, where nobody knows the address.
NO_TEXT: Final = "no text"


@dataclass(frozen=True, slots=True)
class Named:
    """A caller that is known by its ident alone, such as "user:42"."""

    name: str

    @property
    def subject(self) -> Any:
        return None

    def ident(self, key: str) -> str | None:
        if key == EVERYONE:
            return EVERYONE
        kind = KEY_KINDS.get(self.name.partition(":")[0])
        return self.name if kind is None or kind.answers_key(key) else None

    def is_(self, trait: str) -> bool:
        if trait in ("authenticated", "anonymous"):
            return self.name.startswith("user:") == (trait == "authenticated")
        return trait == self.name and keys.is_audience(trait)

    def lacks_address(self, key: str) -> bool:
        return False


def given_ident(what: str, value: Any, caller: Caller | None) -> str | None:
    """The ident that a call counts under by what a site's function returned; None where it is not limited.

    A text or a number counts as it is, hashed where it is long; a user counts as that user. In a view, a text that has
    the shape of an ident which the caller does not have, such as "user:42", counts apart from it. What a client may
    have sent in place of a text (an empty one, a list or an object of JSON) counts under the caller's address.
    Raises InvalidIdent for anything else.
    """
    if is_user(value):
        found = tagged("user", keys.name_of(value)) if value.is_authenticated else None
    elif value is None:
        return None
    else:
        found = None if isinstance(value, SENT) else _text(text_of(plain(what, value)))
    if found is None:
        return (caller and caller.ident("ip")) or NO_TEXT
    return found if caller is None or _is_free(found, caller) else tagged(CLAIMED, found)


def is_user(value: Any) -> bool:
    """True for a user of Django's, one who is not logged in included."""
    return hasattr(value, "is_authenticated")


def _text(text: str) -> str | None:
    kind, colon, value = text.partition(":")
    if not colon or len(kind) > MAX_KIND:
        return bounded(text) or None
    return f"{kind}:{bounded(value)}"


def _is_free(ident: str, caller: Caller) -> bool:
    """Whether no key finds this ident for anybody but the caller."""
    kind, colon, _ = ident.partition(":")
    if kind in KEY_KINDS:
        return caller.ident(kind) == ident
    return kind != CLAIMED and not (colon and ("." in kind or "+" in kind))
