"""A REST framework view, unthrottled and throttled, by us and by others: what a door adds to a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.throttling import BaseThrottle, UserRateThrottle
from rest_framework.views import APIView

from django_throttle.drf import RuleThrottle
from tests.benchmarks.play import one_by_one
from tests.benchmarks.player import Play
from tests.benchmarks.settings import RATES


class DrfThrottle(UserRateThrottle):
    scope = "bench"
    rate = RATES[0]


THROTTLES: dict[str, list[type[BaseThrottle]]] = {"none": [], "ours": [RuleThrottle], "drf": [DrfThrottle]}


def view(url: str, throttle: str) -> Play:
    """A request of a user who is logged in, straight to the view; no middleware, no rendering."""

    class View(APIView):
        authentication_classes = ()
        throttle_classes = THROTTLES.get(throttle, ())
        throttle_scope = "bench"

        def get(self, request: Request) -> Response:
            return Response()

        def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
            found = super().initialize_request(request, *args, **kwargs)
            found.user = request.user
            return found

    if throttle not in THROTTLES:
        from tests.benchmarks.guards import guard  # what only the benchmark installs

        View.get = guard(throttle, View.get)  # type: ignore[method-assign]
    served, factory = View.as_view(), APIRequestFactory()
    request = factory.get("/")

    def call(ident: str) -> None:
        request.user = SimpleNamespace(is_authenticated=True, is_active=True, pk=ident)
        request.__dict__.pop("throttle_decisions", None)
        assert served(request).status_code == 200

    return one_by_one(call)
