"""Idents of the keys of rules: user, API key, session, tenant, group, and functions of the site."""

from __future__ import annotations

import hashlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error as DatabaseFailure
from django.db import connections
from django.db.models import Model
from django.utils.module_loading import import_string

from django_throttle.conf import conf
from django_throttle.core.key import KEY_KINDS, PLAIN_TYPES, ident_hash, secret_bytes
from django_throttle.exceptions import InvalidIdent
from django_throttle.identity.request_body import KeptBody, is_of_request
from django_throttle.runtime import LogThrottle, is_on_event_loop

if TYPE_CHECKING:
    from django.contrib.sessions.backends.base import SessionBase

logger = logging.getLogger("django_throttle")
_log_throttle: Final = LogThrottle()

# Types that a client may send as JSON in place of a text.
JSON_TYPES: Final = (list, dict, bool)
#: Value of a function of the site that fails: the call counts by its address.
FAILED: Final = object()
MAX_VALUE: Final = 512
# In front of the hash of what is longer.
HASHED: Final = "~"


class User(Protocol):
    """A user of the site's model, or AnonymousUser."""

    @property
    def pk(self) -> object: ...

    @property
    def is_authenticated(self) -> bool: ...


class CallerWithUser(Protocol):
    """A caller whose user is known, or known to be nobody."""

    def ident(self, key: str) -> str | None: ...

    def user(self) -> User | None: ...


def ident_of(kind: str, value: object) -> str | None:
    """The ident; None for no value and for an empty one, which is nobody's."""
    if value is None or value == "":
        return None
    text = value if type(value) is str else text_of(value)
    return f"{kind}:{text if len(text) <= MAX_VALUE and text[0] != HASHED else shortened(text)}"


def combined(key: str, parts: Iterable[str | None]) -> str | None:
    """One ident of several, in the order of the key; None when one of them is None."""
    found = tuple(parts)
    if None in found:
        return None
    # What joins them is escaped in each, so that no part can pretend to be two.
    escaped = (str(part).replace("%", "%25").replace("+", "%2B") for part in found)
    return ident_of(key, "+".join(escaped))


def checked_value(what: str, value: object) -> object:
    """The value itself. Raises InvalidIdent for one that differs from call to call, and so would never be limited."""
    if value is None or (isinstance(value, PLAIN_TYPES) and not isinstance(value, bool)):
        return value
    if inspect.iscoroutine(value):
        value.close()
    kind = type(value).__name__
    hint = "; it must not be async" if inspect.isawaitable(value) else ""
    raise InvalidIdent(f"{what} returns a text, a number or None, not {kind}{hint}")


def site_value(what: str, function: Callable[[Any], object], subject: object, *, takes_json: bool = False) -> object:
    """Return the value by which a function of the site counts a call, or FAILED.

    The function fails if it raises or returns what no ident can be made of, and the log says so. FAILED without a line
    for the body of a request that cannot be read, as the view meets the same error, and where it ``takes_json`` for
    values that a client may have sent in place of a text.
    """
    body = KeptBody((subject,))
    try:
        with body:
            value = function(subject)
        return FAILED if takes_json and isinstance(value, JSON_TYPES) else checked_value(what, value)
    except SynchronousOnlyOperation:  # on an event loop; matching is tried again in a thread
        raise
    except Exception as error:
        if is_of_request(error):
            if body.is_lost:
                raise
        elif _log_throttle.due(what):
            logger.exception("%s raised this exception: the call counts by its address; correct the function", what)
        return FAILED


def text_of(value: object) -> str:
    """The text of a checked value; Python writes an int of thousands of digits in hexadecimal only."""
    try:
        return str(value)
    except ValueError:
        if not isinstance(value, int):
            raise
        return hex(value)


def shortened(value: str) -> str:
    """The text, or its hash where it is long."""
    # What looks like a hash is hashed too, lest a short text be another's hash.
    if len(value) <= MAX_VALUE and not value.startswith(HASHED):
        return value
    return HASHED + hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


def is_async(found: object) -> bool:
    """True when calling it gives something to await, which never names a caller."""
    called = getattr(found, "__call__", None)  # noqa: B004 - of an object whose class defines it
    return any(map(inspect.iscoroutinefunction, (found, called))) or inspect.isasyncgenfunction(found)


@lru_cache(maxsize=64)
def is_path(text: str) -> bool:
    """True for the path of attributes, ``user.tenant_id``; False for that of a function, in a package that exists."""
    first = text.partition(".")[0]
    return first in sys.stdlib_module_names or find_spec(first) is None


def tenant_of(subject: object) -> object:
    """The tenant of a request or a scope, by the setting TENANT; None without one.

    Raises InvalidIdent for what is neither a text, a number nor a saved row of a model.
    """
    setting = conf().TENANT
    if not setting:
        return None
    found = _follow(subject, setting) if is_path(setting) else import_string(setting)(subject)
    return checked_value("TENANT", getattr(found, "pk", found))


def user_value(user: User) -> object:
    """What a logged-in user counts under: the primary key, or what the function named by USER_IDENT returns."""
    setting = conf().USER_IDENT
    return checked_value("USER_IDENT", import_string(setting)(user)) if setting else user.pk


def counted_user(user: User) -> object:
    """Return what a logged-in user counts under, or FAILED."""
    return site_value(f"USER_IDENT {conf().USER_IDENT!r}", user_value, user) if conf().USER_IDENT else user.pk


def counted_tenant(subject: object) -> object:
    """Return the tenant that a request or a scope counts under, None without one, or FAILED."""
    return site_value(f"TENANT {conf().TENANT!r}", tenant_of, subject)


def _follow(subject: object, path: str) -> object:
    for name in path.split("."):
        subject = subject.get(name) if isinstance(subject, Mapping) else getattr(subject, name, None)
    return subject


def api_key(accepted: object) -> str | None:
    """The ident of what authentication put in ``auth``: the row of a model, a text, a number; None for anything else.

    A session, a token that is made anew every few minutes, or True, says only that there is a user. The key itself is
    a secret, and idents are told to receivers of signals: so the ident has a keyed hash of it.
    """
    found = ident_of("api_key", _name(accepted))
    return found and f"api_key:{ident_hash(found, secret_bytes(conf().KEY_SECRET))}"


# The types of what authentication has given as an API key in this process.
key_types: Final[set[type]] = set()


def _name(accepted: object) -> str | None:
    if isinstance(accepted, Model):
        row = accepted.pk
        # A text is the key itself; the number of a row is one in every table.
        return row if row is None or isinstance(row, str) else f"{accepted._meta.label_lower}:{row}"
    if isinstance(accepted, (str, int, UUID)) and not isinstance(accepted, bool):
        return text_of(accepted)
    return None


# Where a session in a signed cookie has the name that it is counted by.
SESSION_NAME: Final = "_throttle_session"


def session_key(session: SessionBase | None) -> str | None:
    """The key; None of a session that is empty, or that nobody has stored.

    Raises SynchronousOnlyOperation on an event loop where it has to be read first: a database would say so by itself,
    a cache and files make the loop wait.
    """
    # Its key is whatever the cookie says until the session has been read.
    if session is None or not session.session_key:
        return None
    if not hasattr(session, "_session_cache") and is_on_event_loop():
        raise SynchronousOnlyOperation("a session that has not been read yet is not read on an event loop")
    if not session.keys():
        return None
    return _lasting(session) if isinstance(session, SessionStore) else session.session_key


def _lasting(session: SessionStore) -> str:
    """What stays the same when a session that is kept in a signed cookie, which is its key, is saved again.

    It is put into the session, made of the first cookie, so that one sent again and again counts as one.
    """
    found = session.get(SESSION_NAME)
    if not isinstance(found, str):
        found = session[SESSION_NAME] = hashlib.blake2b(str(session.session_key).encode(), digest_size=16).hexdigest()
    return found


_GROUPS: Final = "_throttle_groups"


def is_audience(trait: str) -> bool:
    """True for a trait that is an ident, such as "tenant:acme"."""
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
    """The names of a user's groups, asked for again where those remembered on the user were asked for before ``since``.

    While the database fails they are those asked for last, or none. Raises SynchronousOnlyOperation on an event loop,
    where the database may not be asked.
    """
    asked_at, known = getattr(user, _GROUPS, (-inf, None))
    if known is None or asked_at < since:
        found = read_groups(user)
        known = known if found is None else found
        if known is not None:
            setattr(user, _GROUPS, (monotonic(), known))
    return known or frozenset()


def read_groups(user: User) -> frozenset[str] | None:
    if user.pk is None or not hasattr(user, "groups"):  # of a user model without permissions
        return frozenset()
    try:
        return group_names(user)
    except DatabaseFailure:
        # A socket has no request at whose end a connection that the database has dropped would be noticed.
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:  # whoever is in a transaction has its connection still
                connection.close_if_unusable_or_obsolete()
    try:
        return group_names(user)
    except DatabaseFailure as error:
        if _log_throttle.due("groups"):
            logger.warning("groups cannot be read, rules and overrides for groups apply to nobody: %s", error)
        return None


def group_names(user: Any) -> frozenset[str]:  # of a model with permissions
    return frozenset(user.groups.values_list("name", flat=True))
