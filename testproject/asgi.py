"""The ASGI application: Django for HTTP, Channels for WebSockets, and static files without a second server."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
django_application = get_asgi_application()

from testproject.urls import websocket_urlpatterns  # noqa: E402  (consumers need Django set up)

Application = Callable[[Any, Any, Any], Awaitable[None]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
STARTS = ("http.response.start", "websocket.http.response.start")


def named(application: Application) -> Application:
    """The application, saying in every response which worker made it."""
    worker = (b"x-worker", str(os.getpid()).encode())

    async def call(scope: Any, receive: Any, send: Send) -> None:
        async def sign(message: dict[str, Any]) -> None:
            if message["type"] in STARTS:
                message = {**message, "headers": [*message.get("headers", ()), worker]}
            await send(message)

        await application(scope, receive, sign)

    return call


application = named(
    ProtocolTypeRouter(
        {
            "http": ASGIStaticFilesHandler(django_application),
            "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),  # type: ignore[arg-type]
        }
    )
)
