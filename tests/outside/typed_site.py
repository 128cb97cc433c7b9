"""What a site writes, with every type said: test_types.py has it checked."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import timedelta

from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.http import HttpRequest, HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle.channels import ThrottledConsumerMixin, throttled_group_send
from django_throttle.core import Decision, Rule
from django_throttle.decorators import throttle
from django_throttle.drf import RuleThrottle
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore


class Reports(RuleThrottle):
    scope = "reports"


class Orders(APIView):
    throttle_classes = [Reports]

    def post(self, request: Request) -> Response:
        return Response({"ok": True})


class Chat(ThrottledConsumerMixin, AsyncJsonWebsocketConsumer):
    throttle_scope = "chat"
    throttle_ladder = {"delay": 3, "close": 10}
    throttle_max_age = timedelta(hours=1)

    def throttle_cost(self, message: Mapping[str, object]) -> int:
        return 2

    def throttle_error_payload(self, decision: Decision) -> object:
        return {"wait": decision.retry_after}

    def throttle_coalesce(self, message: Mapping[str, object]) -> Hashable | None:
        return None


def tenant(request: HttpRequest) -> str:
    return request.headers.get("X-Tenant", "")


@throttle("login")
def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse("in")


@throttle("report", cost=3, ident=tenant)
async def report(request: HttpRequest) -> HttpResponse:
    await throttled_group_send("lobby", {"type": "chat.message", "text": "made"}, publisher=tenant(request))
    return HttpResponse("made")


limiter = Limiter(
    [
        Rule("a", "2/min", scopes=["orders"], methods=["POST"], audience=["anonymous"]),
        Rule("open", limit=5, algorithm="concurrency", events=("connection",)),
    ],
    MemoryStore(),
)


def use(ident: str) -> float | None:
    decision = limiter.acquire(ident, cost=2)
    allowed: bool = decision.allowed
    left: int | None = decision.remaining
    return None if allowed and left else decision.retry_after
