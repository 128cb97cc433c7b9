"""Shared implementation of the WebSocket entry points: a connection for a consumer or an ASGI application."""
