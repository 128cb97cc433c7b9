"""One counter for all doors to the same credential, as the page of the doors shows it (A40)."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import pytest
from asgiref.sync import async_to_sync
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.testing import WebsocketCommunicator
from django.contrib import admin
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.contrib.auth.views import PasswordResetView
from django.test import Client
from django.urls import path
from rest_framework.authtoken.serializers import AuthTokenSerializer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_throttle.channels import ThrottledConsumerMixin
from django_throttle.exceptions import Refused
from tests.doors import LOGIN, Enforce
from tests.entry_points import site
from tests.pages import block, run

SLOTS = block("entry_points", '"reports": {')
LOGINS = block("logins", '"logins": {')
BACKEND = block("logins", "class LimitedBackend")
ADDRESS = "203.0.113.40"
QUICK = ["django.contrib.auth.hashers.MD5PasswordHasher"]
WRONG = {"username": "anna", "password": "wrong"}


class Token(APIView):
    authentication_classes: ClassVar[Any] = []

    def post(self, request: Request) -> Response:
        AuthTokenSerializer(data=request.data, context={"request": request}).is_valid(raise_exception=True)
        return Response()


class Chat(ThrottledConsumerMixin, AsyncJsonWebsocketConsumer):
    throttle_scope = "chat"

    async def receive_json(self, content: Any, **_: Any) -> None:
        try:
            user = await database_sync_to_async(authenticate)(None, **content)
        except Refused as refused:
            await self.send_json({"refused": refused.decision.rule})
        else:
            await self.send_json({"user": user and user.pk})


urlpatterns = [
    path("admin/", admin.site.urls),
    path("token", Token.as_view(), name="token"),
    path("reset", PasswordResetView.as_view(success_url="/"), name="password_reset"),
]


DEFAULT = [*LOGIN, "django.contrib.messages.middleware.MessageMiddleware"]


def ways_in() -> dict[str, Callable[[], int]]:
    client = Client(REMOTE_ADDR=ADDRESS)
    return {
        "admin": lambda: client.post("/admin/login/", WRONG).status_code,
        "token": lambda: client.post("/token", WRONG).status_code,
        "reset": lambda: client.post("/reset", {"email": "anna@example.com"}).status_code,
    }


def socket() -> WebsocketCommunicator:
    communicator = WebsocketCommunicator(Chat.as_asgi(), "/")
    communicator.scope |= {"client": (ADDRESS, 1)}
    return communicator


@pytest.mark.row("A40")
@pytest.mark.django_db(transaction=True)
class TestEveryWayIn:
    """A40: one counter for all doors to the same credential."""

    @pytest.fixture(autouse=True)
    def here(self, settings: Any) -> None:
        settings.MIDDLEWARE = [*DEFAULT, *site.MIDDLEWARE]
        settings.PASSWORD_HASHERS = QUICK

    def test_one_rule_over_all_their_scopes(self, enforce: Enforce) -> None:
        reports, logins = (run(text)["DJANGO_THROTTLE"]["RULES"] for text in (SLOTS, LOGINS))
        enforce(**reports, **logins)
        tried = [way() for _ in range(3) for way in ways_in().values()]
        assert 429 not in tried
        assert async_to_sync(connects)() is True
        assert [way() for way in ways_in().values()] == [429] * 3
        assert async_to_sync(connects)() is False

    def test_what_all_of_them_call(self, enforce: Enforce, settings: Any) -> None:
        User.objects.create_user("anna", password="right")
        backend = ModuleType("tests.http.backend_shown")
        backend.__dict__.update(run(BACKEND))
        sys.modules[backend.__name__] = backend
        settings.AUTHENTICATION_BACKENDS = [f"{backend.__name__}.LimitedBackend"]
        enforce(passwords={"rate": "5/15m", "algorithm": "fixed_window"})
        ways = ways_in()
        assert [ways["admin"](), ways["token"](), ways["admin"]()] == [200, 400, 200]
        assert async_to_sync(says)({"username": "ANNA ", "password": "wrong"}) == {"user": None}
        assert Client().post("/token", {"username": "anna", "password": "right"}).status_code == 200
        assert [ways["admin"](), ways["token"]()] == [429, 429]
        assert async_to_sync(says)(WRONG) == {"refused": "passwords"}
        assert Client().post("/token", {"username": "otto", "password": "x"}).status_code == 400


async def connects() -> bool:
    communicator = socket()
    accepted, _ = await communicator.connect(timeout=5)
    await communicator.disconnect(timeout=5)
    return bool(accepted)


async def says(content: dict[str, str]) -> Any:
    communicator = socket()
    await communicator.connect(timeout=5)
    await communicator.send_json_to(content)
    answer = await communicator.receive_json_from(timeout=5)
    await communicator.disconnect(timeout=5)
    return answer
