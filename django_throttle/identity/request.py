"""The caller of a Django or DRF request."""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject, empty

from django_throttle.identity.caller import Caller

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
