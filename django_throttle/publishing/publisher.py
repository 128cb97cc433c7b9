"""Who publishes: the socket, the request or the name that is counted, and the group that it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpRequest

from django_throttle.core.key import check_ident
from django_throttle.facts import Who
from django_throttle.identity import HttpWho, ScopeWho
from django_throttle.identity.idents import combined
from django_throttle.identity.named import Named

GROUP_KEY: Final = "django_throttle.publishing.group"


def group(subject: object) -> None:
    """The key of rules by which each group has a budget of its own; of what is no publication it says nothing."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """Whoever publishes, and by the key of groups the group itself."""

    who: Who
    group: str

    @property
    def subject(self) -> Any:
        return self.who.subject

    def ident(self, key: str) -> str | None:
        if key == GROUP_KEY:
            return self.group
        return combined(key, map(self.ident, key.split("+"))) if "+" in key else self.who.ident(key)

    def is_(self, trait: str) -> bool:
        return self.who.is_(trait)

    def lacks_address(self, key: str) -> bool:
        return key != GROUP_KEY and self.who.lacks_address(key)


def who_of(publisher: Any) -> Who:
    """A consumer, its scope, a request, a Who or an ident; raises InvalidIdent or TypeError for anything else."""
    if isinstance(publisher, str):
        return Named(check_ident(publisher))
    if isinstance(publisher, Mapping) and "type" in publisher:
        return ScopeWho(publisher)  # type: ignore[arg-type]
    if _is_request(publisher):
        return HttpWho(publisher)
    if hasattr(publisher, "ident") and hasattr(publisher, "is_"):
        return publisher  # type: ignore[no-any-return]
    if isinstance(getattr(publisher, "scope", None), Mapping):
        return ScopeWho(publisher.scope)
    raise TypeError(
        f"publisher is a consumer, its scope, a request or an ident such as 'user:42', not {type(publisher).__name__}"
    )


async def awho_of(publisher: Any) -> Who:
    """The same on an event loop."""
    return await HttpWho.aread(publisher) if _is_request(publisher) else who_of(publisher)


def _is_request(publisher: object) -> bool:
    return isinstance(getattr(publisher, "_request", publisher), HttpRequest)
