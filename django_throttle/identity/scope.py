"""The caller of an ASGI connection."""

from __future__ import annotations

from typing import Any, Final

from django_throttle.identity.caller import Caller

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
