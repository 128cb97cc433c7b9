"""The middleware, beyond what holds at each entry point."""

from __future__ import annotations

import json

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, modify_settings
from django.urls import path

from django_throttle.middleware import ThrottleMiddleware
from tests.doors import Enforce, enforcer
from tests.entry_points import site

enforce = pytest.fixture(enforcer)


def plain(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse("plain")


urlpatterns = [path("plain/<int:number>", plain, name="plain")]


def test_a_refusal_is_a_problem_document_with_its_rule(enforce: Enforce, settings: object) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, site.MIDDLEWARE  # type: ignore[attr-defined]
    enforce(api={"rate": "2/min", "scopes": ["plain"], "algorithm": "fixed_window"})
    answers = [Client().get(f"/plain/{number}") for number in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2]["Content-Type"] == "application/problem+json"
    body = json.loads(answers[2].content)
    assert body["violated-policies"] == ["api"] and body["type"].endswith("#quota-exceeded")


@modify_settings(INSTALLED_APPS={"remove": "django_throttle"})
def test_without_the_app_it_says_what_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    """It goes on: suites of Django's own take apps away beneath a middleware."""
    ThrottleMiddleware(plain)
    assert "'django_throttle' is not in INSTALLED_APPS" in caplog.text
