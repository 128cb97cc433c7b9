"""One budget for HTTP, WebSockets and background work, counted in one Redis.

A *door* is an entry point at which calls are limited: a throttle class, the middleware, the decorator, a consumer, a
publication. It describes a call as facts, has it decided, and turns the decision into its answer; it decides nothing.
"""

__version__ = "0.1.0"
