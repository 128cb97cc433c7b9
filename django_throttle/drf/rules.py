"""The throttle that obeys the rulebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework import throttling
from rest_framework.exceptions import APIException, Throttled
from rest_framework.request import Request

from django_throttle import limiter
from django_throttle.core import Decision
from django_throttle.core.problem import detail, is_too_large
from django_throttle.costs import cost_of
from django_throttle.facts import Facts
from django_throttle.http.body import meter, size_of
from django_throttle.http.request_state import EVENTS, charged, keep, method_of, plain, route
from django_throttle.http.view import attend_by
from django_throttle.identity import HttpWho
from django_throttle.retry import retry_seconds

if TYPE_CHECKING:
    # REST framework imports the default throttle classes while it imports its views.
    from rest_framework.views import APIView


class LimiterUnavailable(APIException):
    """The store failed under a rule that then refuses: 503, as it is not the client's fault."""

    status_code = 503
    default_detail = "The limiter is unavailable. Try again later."
    default_code = "limiter_unavailable"

    def __init__(self, retry_after: float | None) -> None:
        super().__init__()
        self.wait = retry_seconds(retry_after)  # DRF makes Retry-After of it


def exception_of(decision: Decision) -> APIException:
    """What REST framework makes its answer to a refused request of."""
    if decision.unavailable:
        return LimiterUnavailable(decision.retry_after)
    if is_too_large(decision):
        return Throttled(None, detail(decision, None))
    return Throttled(retry_seconds(decision.retry_after))


class DecidedThrottle(throttling.BaseThrottle):
    """Translates a decision into what DRF asks of a throttle; ``decision`` is that of the request."""

    decision: Decision | None = None

    def answer(self, decision: Decision) -> bool:
        """Whether the request may pass; raises what says more than DRF would: who is at fault, or what is too large."""
        self.decision = decision
        if decision.unavailable or is_too_large(decision):
            raise exception_of(decision)
        return decision.allowed

    def wait(self) -> float | None:
        """Seconds until the request could pass, or a little more where a crowd waits; None when it never will."""
        return None if self.decision is None else retry_seconds(self.decision.retry_after)


class RuleThrottle(DecidedThrottle):
    """All rules that match the view's scope, decided as one: refused by one, charged by none.

    The scope is the view's ``throttle_scope``, else its route's name, else its route. ``throttle_cost``
    on the view is a number, or a callable of the request.
    """

    def allow_request(self, request: Request, view: APIView) -> bool:
        visitor, who = plain(request), HttpWho(request)
        attend_by(view, request, who)
        scope, method = scope_of_view(request, view), method_of(visitor)
        done, size = charged(visitor), size_of(visitor)
        facts = Facts(scope, EVENTS, who, _cost(request, view), done, method=method, size=size)
        decision = limiter.decide(facts)
        keep(visitor, decision, facts.cost, who)
        meter(visitor, decision, facts)
        return self.answer(decision)


def scope_of_view(request: Request, view: APIView) -> str:
    """The word by which rules name what a view answers for this request."""
    if scope := getattr(view, "throttle_scope", None):
        return str(scope)
    match = request.resolver_match  # None when called directly; one that a site made by hand may have no route
    return type(view).__name__ if match is None or getattr(match, "route", None) is None else route(match)


def _cost(request: Request, view: APIView) -> int:
    cost = getattr(view, "throttle_cost", 1)
    return 1 if cost == 1 else cost_of(cost, request, what="request")
