"""What a consumer says by the attributes of its class: made into terms, and checked as soon as the class is there."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final

from django_throttle.sockets.terms import Terms

# The attributes, and what they are called in Terms and by the middleware.
OPTIONS: Final[dict[str, str]] = {
    "throttle_scope": "scope",
    "refuse": "refuse",
    "throttle_cost": "cost",
    "throttle_error_payload": "payload",
    "throttle_coalesce": "coalesce",
    "throttle_continuity_payload": "continuity",
    "throttle_close_codes": "close_codes",
    "throttle_ladder": "ladder",
    "throttle_idle_timeout": "idle_timeout",
    "throttle_max_age": "max_age",
    "throttle_on_rule_change": "on_rule_change",
}
# What else somebody may take their names for.
_ALIKE: Final = {"throttle_refuse": "refuse"}
# As alike as a letter more or less makes them; a site may have attributes of its own that begin like ours.
_NEAR: Final = 0.8


def terms_of(consumer: Any) -> Terms:
    """The terms of a consumer."""
    said = {option: getattr(consumer, name) for name, option in OPTIONS.items()}
    return Terms(**{**said, "scope": said["scope"] or type(consumer).__name__})


def check_class(consumer: type) -> None:
    """Raise for a class that can never work: InvalidSetting for what it says, TypeError for what it is.

    What is a property is known only of its instances, and is checked when one opens a socket.
    """
    if hasattr(consumer, "http_request") and not hasattr(consumer, "websocket_connect"):
        raise TypeError(
            f"{consumer.__name__}: ThrottledConsumerMixin limits sockets, and this is a consumer of requests, which "
            "nothing here limits by itself: make it a view, or ask a Limiter in it"
        )
    said = {option: getattr(consumer, name) for name, option in OPTIONS.items()}
    fixed = {option: value for option, value in said.items() if callable(value) or not hasattr(value, "__get__")}
    Terms(**{**fixed, "scope": fixed.get("scope") or consumer.__name__}).check()


def misspelt(consumer: type) -> Iterator[tuple[str, str]]:
    """Attributes that a class itself has and that mean nothing, with the one that was meant, as far as it shows."""
    for name in vars(consumer):
        if name in OPTIONS or not name.startswith("throttle"):
            continue
        near = get_close_matches(name, (*OPTIONS, *_ALIKE), n=1, cutoff=_NEAR)
        if near:
            yield name, _ALIKE.get(near[0], near[0])
