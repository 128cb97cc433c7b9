"""Publishing to the groups of a channel layer; ``django_throttle.channels`` has the functions to publish with."""

from __future__ import annotations

from typing import Final

GROUP_KEY: Final = "django_throttle.publishing.group"


def group(subject: object) -> None:
    """The key of rules by which each group has its own budget; calls that are no publications have no such ident."""
