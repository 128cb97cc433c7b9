"""One budget for HTTP, WebSockets and background work, counted in one Redis.

Calls are limited at entry points: throttle classes, the middleware, the decorator, consumers, publications, tasks. An
entry point describes a call, has it decided, and turns the decision into an answer. It decides nothing itself.
"""

__version__ = "0.1.0"
