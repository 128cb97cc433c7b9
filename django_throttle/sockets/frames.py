"""What a client of a socket is told by us: of a refusal, of what it has not been sent, of why it is closed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final, NamedTuple

from django.core.serializers.json import DjangoJSONEncoder
from django.utils.functional import Promise

from django_throttle.core import Decision
from django_throttle.core.headers import delay_seconds
from django_throttle.core.problem import detail, error_code, refusing
from django_throttle.sockets.asgi import Event

# RFC 6455, 5.5: a control frame carries at most 125 bytes, two of which are the close code.
MAX_REASON: Final = 123


def error_payload(decision: Decision) -> dict[str, Any]:
    """The error frame's content; times in seconds, ``retry_after`` in whole milliseconds and None for never."""
    outcome = refusing(decision)
    return {
        "type": "error",
        "code": error_code(decision),
        "detail": detail(decision, delay_seconds(decision.retry_after)),
        "rule": decision.rule,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "window": _short(outcome.window if outcome else None),
        "retry_after": _short(decision.retry_after),
    }


class Gap(NamedTuple):
    """How many frames to a client were left out, or overtaken by a newer one of their kind, and since when."""

    lost: int
    since: datetime


def continuity_payload(gap: Gap) -> dict[str, Any]:
    """The content of the frame that tells of a gap; ``since`` is ISO 8601 in UTC, by the server's clock."""
    are = "messages were" if gap.lost != 1 else "message was"
    since = gap.since.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    detail = f"{gap.lost} {are} not sent to you, as there were too many."
    return {"type": "continuity_lost", "lost": gap.lost, "since": since, "detail": detail}


def notice(code: str, detail: str, retry_after: float | None = None) -> dict[str, Any]:
    """An error frame's content where no rule speaks: why a socket is closed, and when to come back, None for never."""
    nothing = dict.fromkeys(("rule", "limit", "remaining", "window"))
    return {"type": "error", "code": code, "detail": detail, **nothing, "retry_after": retry_after}


def close_reason(decision: Decision) -> str:
    """Such as ``rate limited; retry_after=17``: at most 123 bytes, which some servers drop."""
    said = error_code(decision).replace("_", " ")
    seconds = delay_seconds(decision.retry_after)
    reason = said if seconds is None else f"{said}; retry_after={seconds}"
    return reason[:MAX_REASON]


def encoded(payload: object) -> str | bytes:
    """Text and bytes as they are, anything else as JSON; raises TypeError or ValueError for what is none of them."""
    if isinstance(payload, Promise):  # a text that waits for its language
        payload = str(payload)
    if isinstance(payload, str):
        payload.encode()  # half of a surrogate pair can be sent by no server
        return payload
    if payload is None:
        raise TypeError("None is nothing to tell a client")
    return payload if isinstance(payload, bytes) else json.dumps(payload, cls=DjangoJSONEncoder, allow_nan=False)


def frame(payload: object) -> Event:
    """A payload as the event that sends it; raises what ``encoded`` does."""
    content = encoded(payload)
    return {"type": "websocket.send", "bytes" if isinstance(content, bytes) else "text": content}


def _short(seconds: float | None) -> float | None:
    """Rounded up to a millisecond; a whole number where it is one, as it reads better in JSON."""
    if seconds is None:
        return None
    rounded = ceil(round(seconds * 1000, 3)) / 1000
    return int(rounded) if rounded.is_integer() else rounded
