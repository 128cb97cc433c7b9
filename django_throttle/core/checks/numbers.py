"""What the checks have in common: a choice, a whole number, the path of a function."""

from __future__ import annotations

from django_throttle.exceptions import InvalidRule


def one_of(option: str, given: object, allowed: tuple[str, ...]) -> None:
    """Raise InvalidRule unless it is one of those allowed."""
    if given not in allowed:
        raise InvalidRule(f"{option} is one of {', '.join(allowed)}, not {given!r}", option)


def whole(option: str, given: object, least: int, most: int) -> None:
    """Raise InvalidRule unless it is a whole number in range."""
    if type(given) is not int or not least <= given <= most:
        raise InvalidRule(f"{option} is a whole number from {least:,} to {most:,}, not {given!r}", option)


def is_dotted(given: object) -> bool:
    """True for a text with the shape of a path to a function: "shop.limits.tenant"."""
    return isinstance(given, str) and "." in given and all(part.isidentifier() for part in given.split("."))
