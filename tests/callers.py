"""Callers as rules see them, without a request: idents under keys, and traits."""

from typing import Any


class KeyedCaller:
    """A caller with an ident under some keys, and traits; notes what it was asked."""

    def __init__(self, *traits: str, subject: Any = None, **idents: str) -> None:
        self.traits, self.subject, self.idents = traits, subject, idents
        self.asked: list[str] = []

    def ident(self, key: str) -> str | None:
        self.asked.append(key)
        return self.idents.get(key)

    def is_(self, trait: str) -> bool:
        self.asked.append(trait)
        return trait in self.traits


class SameByEveryKey(KeyedCaller):
    """A caller with one ident, whatever a rule counts by, and a subject that functions can be called with."""

    def __init__(self, *traits: str, subject: Any = "a request", **idents: str) -> None:
        super().__init__(*traits, subject=subject, **idents)

    def ident(self, key: str) -> str | None:
        return "user:1"


ANNA = KeyedCaller(user="user:1", user_or_ip="user:1", ip="ip:192.0.2.1")
GUEST = KeyedCaller(user_or_ip="ip:192.0.2.1", ip="ip:192.0.2.1")
