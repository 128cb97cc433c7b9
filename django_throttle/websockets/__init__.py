"""What the WebSocket entry points share: one connection for every consumer and every ASGI application."""
