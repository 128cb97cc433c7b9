"""One budget for HTTP, WebSockets and background work, counted in one Redis."""

__version__ = "0.1.0"
