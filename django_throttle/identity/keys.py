"""Idents under the keys of rules: user, API key, session, tenant, group, and functions of the site."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from math import inf
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error as DatabaseFailure
from django.db import connections
from django.db.models import Model
from django.utils.module_loading import import_string

from django_throttle.conf import conf
from django_throttle.core.key import KEY_KINDS, ident_hash, secret_bytes
from django_throttle.identity.site_functions import FAILED, checked_value, site_value
from django_throttle.runtime import LogThrottle, is_on_event_loop

if TYPE_CHECKING:
    from django.contrib.sessions.backends.base import SessionBase

logger = logging.getLogger("django_throttle")
_log_throttle: Final = LogThrottle()

MAX_VALUE_CHARS: Final = 512
#: Prefix of the hash of a longer value.
LONG_VALUE_PREFIX: Final = "~"


class User(Protocol):
    """User of the site's model, or AnonymousUser."""

    @property
    def pk(self) -> object: ...

    @property
    def is_authenticated(self) -> bool: ...


class CallerWithUser(Protocol):
    """Caller whose user is known. The user is None for anonymous callers."""

    def ident(self, key: str) -> str | None: ...

    def user(self) -> User | None: ...


def ident_of(kind: str, value: object) -> str | None:
    """Return the ident of a kind and a value, or None if the value is None or empty."""
    if value is None or value == "":
        return None
    text = value if type(value) is str else text_of(value)
    return f"{kind}:{text if len(text) <= MAX_VALUE_CHARS and text[0] != LONG_VALUE_PREFIX else shortened(text)}"


def combined(key: str, parts: Iterable[str | None]) -> str | None:
    """Return one ident for several parts, in the order of the key, or None if a part is None."""
    idents = tuple(parts)
    if None in idents:
        return None
    # "+" is escaped, so that no part can pretend to be two.
    escaped = (str(ident).replace("%", "%25").replace("+", "%2B") for ident in idents)
    return ident_of(key, "+".join(escaped))


def text_of(value: object) -> str:
    """Return the text of a checked value. Use hexadecimal for an integer that is too long for Python's ``str``."""
    try:
        return str(value)
    except ValueError:
        if not isinstance(value, int):
            raise
        return hex(value)


def shortened(value: str) -> str:
    """Return the text, or its hash if it is too long."""
    # A text that looks like a hash is hashed, too. Otherwise it could be equal to the hash of another text.
    if len(value) <= MAX_VALUE_CHARS and not value.startswith(LONG_VALUE_PREFIX):
        return value
    return LONG_VALUE_PREFIX + hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


@lru_cache(maxsize=64)
def is_path(text: str) -> bool:
    """Return True for a path of attributes, such as ``user.tenant_id``, and False for a function in a known package."""
    first = text.partition(".")[0]
    return first in sys.stdlib_module_names or find_spec(first) is None


def tenant_of(subject: object) -> object:
    """Return the tenant of a request or a scope by the setting TENANT, or None if it has none.

    Raise InvalidIdent if the tenant is neither a text, a number nor a saved row of a model.
    """
    tenant = tenant_object(subject)
    return checked_value("TENANT", getattr(tenant, "pk", tenant))


def tenant_object(subject: object) -> object:
    """Return the tenant as the setting TENANT finds it, such as a row of a model, or None."""
    setting = conf().TENANT
    if not setting:
        return None
    return _follow(subject, setting) if is_path(setting) else import_string(setting)(subject)


def counted_tenant(subject: object) -> object:
    """Return the counted tenant of a request or a scope, None if it has none, or FAILED."""
    return site_value(f"TENANT {conf().TENANT!r}", tenant_of, subject)


def is_tenant_of_user() -> bool:
    """Return True if the setting TENANT is a path of attributes of the user."""
    return conf().TENANT.startswith("user.") and is_path(conf().TENANT)


def tenant_of_user(user: User | None) -> str | None:
    """Return the ident of a user's tenant, or None if the user has none or it does not follow from the user."""
    tenant = counted_tenant(SimpleNamespace(user=user)) if user is not None and is_tenant_of_user() else None
    return None if tenant is FAILED else ident_of("tenant", tenant)


def _follow(subject: object, path: str) -> object:
    for name in path.split("."):
        subject = subject.get(name) if isinstance(subject, Mapping) else getattr(subject, name, None)
    return subject


def api_key(credential: object) -> str | None:
    """Return the ident of the credential in ``auth``: a row of a model, a text or a number. Return None for others.

    Other credentials, such as a session, a short-lived token or True, only show that there is a user. Because the key
    is a secret, and receivers of signals see idents, the ident has a keyed hash of it.
    """
    ident = ident_of("api_key", _name(credential))
    return ident and f"api_key:{ident_hash(ident, secret_bytes(conf().KEY_SECRET))}"


#: Types of the credentials that were counted as API keys in this process.
key_types: Final[set[type]] = set()


def _name(credential: object) -> str | None:
    if isinstance(credential, Model):
        row = credential.pk
        # A text is the key itself. A number is not unique: rows of other tables have it, too.
        return row if row is None or isinstance(row, str) else f"{credential._meta.label_lower}:{row}"
    if isinstance(credential, (str, int, UUID)) and not isinstance(credential, bool):
        return text_of(credential)
    return None


#: Key in a signed-cookie session of the name that is counted.
SESSION_NAME: Final = "_throttle_session"


def session_key(session: SessionBase | None) -> str | None:
    """Return the key of a session, or None if the session is empty or not stored.

    Raise SynchronousOnlyOperation on an event loop if the session was not read yet. A database would raise that by
    itself, but a cache or files would block the loop.
    """
    # Until the session is read, its key is the unchecked text of the cookie.
    if session is None or not session.session_key:
        return None
    if not hasattr(session, "_session_cache") and is_on_event_loop():
        raise SynchronousOnlyOperation("a session that has not been read yet is not read on an event loop")
    if not session.keys():
        return None
    return _lasting_name(session) if isinstance(session, SessionStore) else session.session_key


def _lasting_name(session: SessionStore) -> str:
    """Return a name of a signed-cookie session that stays the same when the session is saved, unlike its key.

    The name is a hash of the first cookie, stored in the session. A client that sends that cookie repeatedly is counted
    under the same name.
    """
    name = session.get(SESSION_NAME)
    if not isinstance(name, str):
        name = session[SESSION_NAME] = hashlib.blake2b(str(session.session_key).encode(), digest_size=16).hexdigest()
    return name


_GROUPS: Final = "_throttle_groups"


def is_audience(trait: str) -> bool:
    """Return True for a trait that is an ident, such as "tenant:acme"."""
    kind = KEY_KINDS.get(trait.partition(":")[0])
    return kind is not None and kind.is_audience


def has_trait(trait: str, caller: CallerWithUser) -> bool:
    kind, _, name = trait.partition(":")
    if is_audience(trait):
        return name != "" and caller.ident(kind) == ident_of(kind, name)
    user = caller.user()
    if user is None or not user.is_authenticated:
        return kind == "anonymous"
    if kind == "staff":
        return bool(getattr(user, "is_staff", False))
    return kind == "authenticated" or (
        kind == "group" and name in groups_of(user, getattr(caller, "groups_since", -inf))
    )


def groups_of(user: User, since: float) -> frozenset[str]:
    """Return the names of a user's groups. Read them again if those cached on the user were read before ``since``.

    If the database fails, return the cached names, or none. Raise SynchronousOnlyOperation on an event loop, which must
    not query the database.
    """
    read_at, names = getattr(user, _GROUPS, (-inf, None))
    if names is None or read_at < since:
        current = read_groups(user)
        names = names if current is None else current
        if names is not None:
            setattr(user, _GROUPS, (monotonic(), names))
    return names or frozenset()


def read_groups(user: User) -> frozenset[str] | None:
    if user.pk is None or not hasattr(user, "groups"):  # a user model without permissions
        return frozenset()
    try:
        return group_names(user)
    except DatabaseFailure:
        # Django closes broken connections at the end of a request, but a socket has none.
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:  # a transaction keeps its connection
                connection.close_if_unusable_or_obsolete()
    try:
        return group_names(user)
    except DatabaseFailure as error:
        if _log_throttle.try_acquire("groups"):
            logger.warning("groups cannot be read, rules and overrides for groups apply to nobody: %s", error)
        return None


def group_names(user: Any) -> frozenset[str]:  # a user model with permissions
    return frozenset(user.groups.values_list("name", flat=True))
