"""The page, and what it asks twice a second: how much of each budget is left."""

from __future__ import annotations

import os

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_safe

from django_throttle import limiter, rulebook
from django_throttle.core import Outcome, Rule
from django_throttle.core.descriptions import describe
from django_throttle.identity import RequestCaller
from django_throttle.identity.call import Call
from django_throttle.models import ThrottleRule
from testproject import chat

# Everything the page does, as the entry points tell it to the rulebook: what happens in each scope.
DOINGS = {
    "search": ("request",),
    "orders": ("request",),
    "chat": ("message", "connect", "connection"),
    chat.ROOM: ("publish",),
}


@require_safe
@ensure_csrf_cookie
def page(request: HttpRequest) -> HttpResponse:
    """The one page; everything that moves on it comes from its modules."""
    return render(request, "testproject/page.html")


@require_safe
@never_cache
def budgets(request: HttpRequest) -> JsonResponse:
    """What is left of each budget of whoever asks. Asking costs nothing."""
    caller = RequestCaller(request)
    decisions = [limiter.decide(Call(scope, events, caller), commit=False) for scope, events in DOINGS.items()]
    found = [outcome for decision in decisions for outcome in decision.outcomes]
    # Of a rule with several rates, the one nearest its end stays.
    outcomes = {outcome.rule: outcome for outcome in sorted(found, key=lambda outcome: -outcome.remaining)}
    rules = {rule.name: rule for rule in rulebook.current().rules}
    rows = dict(ThrottleRule.objects.values_list("name", "pk"))
    degraded = any(decision.degraded for decision in decisions)
    return JsonResponse(
        {
            "user": request.user.get_username() or None,
            "ident": caller.ident("user_or_ip"),
            "worker": os.getpid(),
            "degraded": degraded,
            "lost": chat.lost,
            "rules": [
                _budget(rules[name], outcome, rows, degraded=degraded)
                for name, outcome in outcomes.items()
                if name in rules
            ],
        }
    )


def _budget(rule: Rule, outcome: Outcome, rows: dict[str, int], *, degraded: bool) -> dict[str, object]:
    """What the page shows of one rule. While the store does not answer nobody knows what is left in all."""
    row = rows.get(rule.name)
    rate = next((rate for rate in (rule.rate, *rule.rates) if rate and rate.window == outcome.window), None)
    return {
        "name": rule.name,
        "words": describe(rule),
        "ident": outcome.ident,
        "rate": str(rate) if rate else None,
        "per_second": rate.limit / rate.window if rate else None,
        "limit": outcome.limit,
        "remaining": None if degraded else outcome.remaining,
        "retry_after": None if degraded else outcome.retry_after,
        "admin": None if row is None else reverse("admin:django_throttle_throttlerule_change", args=[row]),
    }
