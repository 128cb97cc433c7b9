"""Exceptions from which REST framework makes the responses to refused requests."""

from __future__ import annotations

from functools import lru_cache

from django.utils.translation import get_language, gettext_lazy
from rest_framework.exceptions import APIException, Throttled

from django_throttle.core import Decision
from django_throttle.http.problem_details import detail, is_too_large
from django_throttle.http.retry_after import retry_seconds


class LimiterUnavailable(APIException):
    """Error 503: the store failed, and a rule refuses calls then. It is not the client's fault."""

    status_code = 503
    default_detail = gettext_lazy("The limiter is unavailable. Try again later.")
    default_code = "limiter_unavailable"

    def __init__(self, retry_after: float | None) -> None:
        super().__init__()
        self.wait = retry_seconds(retry_after)  # REST framework sets Retry-After to it


def exception_of(decision: Decision) -> APIException:
    """Return the exception from which REST framework makes the response to a refused request."""
    if decision.unavailable:
        return LimiterUnavailable(decision.retry_after)
    if is_too_large(decision):
        return Throttled(None, detail(decision, None))
    return throttled_error(retry_seconds(decision.retry_after))


def throttled_error(wait: int | None) -> Throttled:
    """Return REST framework's own exception, with the seconds to wait."""
    error = Throttled.__new__(Throttled, wait)  # its __init__ translates three texts, which takes longer than deciding
    vars(error).update(wait=wait, detail=_detail_in(get_language(), wait))
    return error


@lru_cache(maxsize=1024)
def _detail_in(language: str | None, wait: int | None) -> object:
    """Return REST framework's text of a refusal in the current language."""
    return Throttled(wait).detail
