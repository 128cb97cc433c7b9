"""The status that an answer has, or will have once a framework has made a response of it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404

_STATUSES: Final = (
    (Http404, HTTPStatus.NOT_FOUND),
    (PermissionDenied, HTTPStatus.FORBIDDEN),
    ((BadRequest, SuspiciousOperation), HTTPStatus.BAD_REQUEST),
    (Exception, HTTPStatus.INTERNAL_SERVER_ERROR),
)


def status_of(answer: Any) -> Any:
    """The status of a response; of content, a success unless it says another first, as an attribute or in a tuple."""
    first = answer[0] if isinstance(answer, tuple) and answer else HTTPStatus.OK
    return getattr(answer, "status_code", first)


def status_of_error(error: BaseException) -> int | None:
    """What Django, or the framework that raised it, makes of an error; None when nobody was left to be answered."""
    found = next((status for kind, status in _STATUSES if isinstance(error, kind)), None)
    said = getattr(error, "status_code", None)
    return said if isinstance(said, int) else found
