"""Two endpoints that cost something: a search that shares its budget with the chat, and orders with their own."""

from __future__ import annotations

import os

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle.drf import RuleThrottle

FRUIT = ("apple", "apricot", "banana", "cherry", "fig", "grape", "lemon", "mango", "orange", "peach", "pear", "plum")


class SearchView(APIView):
    """Finds fruit by a part of its name."""

    throttle_classes = [RuleThrottle]
    throttle_scope = "search"

    def get(self, request: Request) -> Response:
        wanted = request.query_params.get("q", "").lower()
        return Response({"found": [fruit for fruit in FRUIT if wanted in fruit], "worker": os.getpid()})


class OrderView(APIView):
    """Takes an order, and forgets it."""

    throttle_classes = [RuleThrottle]
    throttle_scope = "orders"

    def post(self, request: Request) -> Response:
        return Response({"ordered": True, "worker": os.getpid()}, status=201)
