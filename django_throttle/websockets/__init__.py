"""What the WebSocket doors share: one connection for every consumer and every ASGI application."""
