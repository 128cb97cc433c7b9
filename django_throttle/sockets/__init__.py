"""The machinery behind the WebSocket doors: one guard for every consumer and every ASGI application."""
