"""Where the doors stand, and what they are told by settings of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.conf import settings
from django.core.checks import CheckMessage, Warning

from django_throttle.checks.given import wrong
from django_throttle.checks.told import inherits, of_drf
from django_throttle.core import Rate
from django_throttle.exceptions import InvalidRate

DOOR: Final = "django_throttle.middleware.ThrottleMiddleware"
SOCKETS: Final = "django_throttle.channels.ThrottleMiddleware"
AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"
DROP_IN: Final = "django_throttle.drf.StoreRateThrottle"


def middleware_messages() -> Iterator[CheckMessage]:
    """The middleware stands once, where a user is known, and is the one for requests."""
    listed = list(settings.MIDDLEWARE)
    if SOCKETS in listed:
        yield wrong("E070", f"{SOCKETS} goes around an ASGI application of sockets; MIDDLEWARE has {DOOR}")
    if DOOR in listed and AUTHENTICATION in listed[listed.index(DOOR) :]:
        message = "ThrottleMiddleware stands before AuthenticationMiddleware, so that rules by user meet nobody there"
        yield Warning(message, hint=f"List {DOOR} after {AUTHENTICATION}.", id="django_throttle.W040")
    if listed.count(DOOR) > 1:
        yield Warning("ThrottleMiddleware is in MIDDLEWARE more than once", id="django_throttle.W041")


def rate_messages() -> Iterator[CheckMessage]:
    """REST framework's rates can be read, where our throttles take the place of its own."""
    if not inherits(of_drf("DEFAULT_THROTTLE_CLASSES", ()), DROP_IN):
        return
    for scope, rate in of_drf("DEFAULT_THROTTLE_RATES", {}).items():
        try:
            _ = rate is None or Rate.parse(rate)
        except InvalidRate as error:
            yield wrong("E071", f"DEFAULT_THROTTLE_RATES of REST framework, scope {scope!r}: {error}")
