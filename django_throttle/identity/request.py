"""The caller of a Django or DRF request."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from django_throttle.identity.caller import Caller


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
        if hasattr(request, "_request"):
            return cls(request)
        return cls(request, await request.auser() if hasattr(request, "auser") else None)

    def user(self) -> Any:
        return getattr(self.subject, "user", None) if self._user is None else self._user

    def auth(self) -> Any:
        return getattr(self.subject, "auth", None)

    def session(self) -> Any:
        return getattr(self.subject, "session", None)

    def peer(self) -> object:
        return self.subject.META.get("REMOTE_ADDR")

    def header(self, name: str) -> str:
        """All lines of a header; servers join them with commas."""
        return str(self.subject.META.get(f"HTTP_{name.upper().replace('-', '_')}", ""))
