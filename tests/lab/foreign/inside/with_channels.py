"""A plugin of pytest: our mixin stands left of Channels' consumers, whoever derives from them."""

from __future__ import annotations

import presence  # noqa: F401
from channels.generic import websocket

from django_throttle.channels import ThrottledConsumerMixin

for name in ("WebsocketConsumer", "JsonWebsocketConsumer", "AsyncWebsocketConsumer", "AsyncJsonWebsocketConsumer"):
    setattr(websocket, name, type(name, (ThrottledConsumerMixin, getattr(websocket, name)), {}))
