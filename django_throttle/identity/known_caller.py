"""A caller of whom only the ident is known: what rules find of the rest, as far as that can be known."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError

from django_throttle.conf import conf
from django_throttle.core.descriptions import who as whose
from django_throttle.core.key import EVERYONE, KEY_KINDS
from django_throttle.core.options import key_parts
from django_throttle.core.texts import gettext_lazy, gettext_noop
from django_throttle.identity.keys import combined, has_trait, ident_of, is_path, tenant_of


class KnownCaller:
    """Whoever has this ident, such as "user:42"; of a user also staff, groups and, by the user, the tenant.

    ``is_certain`` is False where it is unknown to which audiences the caller belongs: of a tenant, of a session, and of
    a user whom a function of the site's names.
    """

    subject: Any = None

    def __init__(self, ident: str) -> None:
        self.name = ident
        self.kind, _, value = ident.partition(":")
        self.kinds = key_parts(self.kind)
        self._user = _user(value) if self.kind == "user" else None
        self.is_certain = self._user is not None or self.kind == "ip"

    def ident(self, key: str) -> str | None:
        """The ident under a rule's key; None where it is another, or is not known."""
        kind = KEY_KINDS.get(self.kind)
        if key in (EVERYONE, self.kind) or (kind is not None and key in kind.answers):
            return EVERYONE if key == EVERYONE else self.name
        if "+" in key:
            return combined(key, map(self.ident, key_parts(key)))
        return ident_of("tenant", self._tenant()) if key == "tenant" else None

    def is_(self, trait: str) -> bool:
        return has_trait(trait, self)

    def lacks_address(self, key: str) -> bool:
        return False  # it has one that is not known here

    def user(self) -> Any:
        return self._user

    def why_not(self, key: str) -> str:
        """Why a rule of this key does not count the caller under this ident."""
        if key == "connection":
            return gettext_lazy("it counts each WebSocket by itself, in the process that has it open")
        like = key if "." in key and "+" not in key else "+".join(key_parts(key))
        pattern = gettext_noop("it counts {who}, so {caller} is not who it counts: ask for {kind}:…")
        return gettext_lazy(pattern, who=whose(key), caller=self.name, kind=like)

    def _tenant(self) -> object:
        path = conf().TENANT
        if self._user is None or not path.startswith("user.") or not is_path(path):
            return None
        return tenant_of(SimpleNamespace(user=self._user))


def _user(value: str) -> Any:
    """The user of this primary key; None where there is none, and where a function of the site's names users."""
    if conf().USER_IDENT:
        return None
    with suppress(ImproperlyConfigured, ValidationError, ValueError, TypeError, OverflowError):
        return get_user_model()._default_manager.filter(pk=value).first()
    return None
