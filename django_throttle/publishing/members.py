"""Which channels of this process are in which groups: the truth that other processes are told."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from threading import Lock

from django_throttle.forks import in_child


class Members:
    """Channels by group, from any thread; none in a forked child, which is a process of its own."""

    def __init__(self) -> None:
        self._renew()
        in_child(self, type(self)._renew)

    def _renew(self) -> None:
        self.process = secrets.token_urlsafe(9)
        self._lock = Lock()
        self._groups: dict[str, set[str]] = {}
        self._changed: set[str] = set()

    def add(self, group: str, channel: str) -> None:
        """It is in the group; a second time changes nothing."""
        with self._lock:
            self._groups.setdefault(group, set()).add(channel)
            self._changed.add(group)

    def discard(self, group: str, channel: str) -> None:
        """It is not in the group any more; a second time changes nothing."""
        with self._lock:
            channels = self._groups.get(group)
            if channels is None or channel not in channels:
                return
            channels.remove(channel)
            if not channels:
                del self._groups[group]
            self._changed.add(group)

    def count(self, group: str) -> int:
        """How many are in the group."""
        return len(self._groups.get(group, ()))

    def take_changed(self, *, whole: bool = False) -> dict[str, int]:
        """How many are in each group that has changed since the last time, or in every one; ``doubt`` what fails."""
        with self._lock:
            named = self._changed.union(self._groups) if whole else self._changed
            self._changed = set()
            return {group: self.count(group) for group in named}

    def doubt(self, groups: Iterable[str]) -> None:
        """Others may not know of these groups: tell them again."""
        with self._lock:
            self._changed.update(groups)


members = Members()
