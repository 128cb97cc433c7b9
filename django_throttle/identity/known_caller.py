"""Callers of whom only the ident is known, and their other idents and traits as far as these follow from it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.http import HttpRequest

from django_throttle.conf import conf
from django_throttle.core.descriptions import key_in_words
from django_throttle.core.key import EVERYONE, KEY_KINDS
from django_throttle.core.options import is_dotted, key_parts
from django_throttle.core.texts import gettext_noop, translatable
from django_throttle.identity.keys import combined, has_trait, is_audience, is_tenant_of_user, tenant_of_user

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

LOGIN_NAME: Final = "django_throttle.contrib.logins.login_name"
GROUP: Final = "django_throttle.channels.group"
EXAMPLES: Final = {
    "user": "user:42", "ip": "ip:203.0.113.9", "user_or_ip": "user:42", "api_key": "api_key:KEY",
    "session": "session:KEY", "tenant": "tenant:acme", GROUP: "group:default:NAME",
}  # fmt: skip


class KnownCaller:
    """Caller with an ident such as "user:42". For a user, staff, groups and the user's tenant are known, too.

    ``user`` and ``auth`` are those of the caller's requests, as far as they are known.
    """

    subject: object = None
    is_explicit: bool  #: True if no key makes the ident, so that only an entry point that names it counts it

    def __init__(
        self, ident: str, *, user: AbstractBaseUser | None = None, auth: object = None, is_explicit: bool = False
    ) -> None:
        self.name, self.auth = ident, auth
        self.kind, _, value = ident.partition(":")
        self.kinds = key_parts(self.kind)
        self._user = _user(value) if user is None and self.kind == "user" else user
        is_of_key = self.kind in (*KEY_KINDS, "group") or "+" in self.kind or is_dotted(self.kind)
        self.is_explicit = is_explicit or not is_of_key

    def ident(self, key: str) -> str | None:
        """Return the ident under a rule's key, or None if the caller has none or it is unknown."""
        if self.is_explicit:
            return None
        if key == GROUP and self.kind == "group":
            return self.name
        kind = KEY_KINDS.get(self.kind)
        if key in (EVERYONE, self.kind) or (kind is not None and key in kind.answers):
            return EVERYONE if key == EVERYONE else self.name
        if "+" in key:
            return combined(key, map(self.ident, key_parts(key)))
        return tenant_of_user(self._user) if key == "tenant" else None

    def is_(self, trait: str) -> bool:
        return has_trait(trait, self)

    def has(self, trait: str, key: str) -> bool | None:
        """Return True if the calls that a rule of this key counts have the trait. Return None if that is unknown.

        An address is that of an anonymous caller only under a key that counts logged-in callers by themselves.
        """
        is_anonymous = self.kind == "ip" and not {"user_or_ip", "api_key"}.isdisjoint(key_parts(key))
        is_known = self._user is not None or is_anonymous
        if is_audience(trait):
            is_known = self.ident("tenant") is not None or not conf().TENANT or (is_known and is_tenant_of_user())
        return self.is_(trait) if is_known else None

    def lacks_address(self, key: str) -> bool:
        return False  # the caller has an address, though it is unknown here

    def user(self) -> AbstractBaseUser | None:
        return self._user

    def request(self) -> PartialRequest | None:
        """Return the known attributes of the caller's requests, or None if there are none."""
        attributes = {"user": self._user, "auth": self.auth}
        attributes = {name: value for name, value in attributes.items() if value is not None}
        return PartialRequest(attributes) if attributes else None

    def may_have_ident(self, key: str) -> bool:
        """Return True if a call of this user or address may be counted under an ident of this key that is unknown here.

        Any call may have an API key. Return False for idents that callers share, such as a tenant's.
        """
        if self.kind not in ("user", "ip") or key in ("connection", EVERYONE):
            return False
        if "+" in key:
            parts = key_parts(key)
            may_have_all = all(self.ident(part) or self.may_have_ident(part) for part in parts)
            return may_have_all and any(map(self.may_have_ident, parts))
        if key == "tenant":
            return bool(conf().TENANT) and not (is_tenant_of_user() and (self._user is not None or self.kind == "ip"))
        return key == "api_key" or (key != "user" and self.ident(key) is None)

    def example_ident(self, key: str) -> str:
        """Return the caller's ident of this key if it is known, else an example of such an ident."""
        if "+" in key:
            return combined(key, map(self.example_ident, key_parts(key))) or key
        if key == LOGIN_NAME and self._user is not None:
            return f"{key}:{self._user.get_username()}"
        return self.ident(key) or EXAMPLES.get(key, f"{key}:VALUE")

    def why_not(self, key: str) -> str:
        """Return the reason why a rule of this key does not count this ident, or why that is unknown."""
        if self.is_explicit:
            return translatable("it has counted nothing under {caller}", caller=self.name)
        if key == "connection":
            return translatable("it counts each WebSocket by itself, in the process that has it open")
        other_key = gettext_noop("it counts {who}, not {caller}: look up {like}")
        unknown = gettext_noop("it counts {who}; which that is for {caller} is not known here: look up {like}")
        pattern = unknown if self.may_have_ident(key) else other_key
        return translatable(pattern, who=key_in_words(key), caller=self.name, like=self.example_ident(key))


class PartialRequest:
    """Known attributes of a request. ``lacks_any`` is True once a function has read an unknown attribute."""

    # Key functions may tell a request from an ASGI scope by isinstance().
    __class__ = property(lambda self: HttpRequest)

    def __init__(self, attributes: dict[str, object]) -> None:
        self.lacks_any = False
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> object:
        if not name.startswith("_"):
            self.lacks_any = True
        raise AttributeError(f"the attribute {name} of the caller's requests is unknown")


def _user(value: str) -> AbstractBaseUser | None:
    """Return the user of this primary key. Return None if there is none."""
    with suppress(ImproperlyConfigured, ValidationError, ValueError, TypeError, OverflowError):
        return get_user_model()._default_manager.filter(pk=value).first()
    return None
