"""What there is to choose from, and how much of it: the words and the bounds of every option."""

from __future__ import annotations

from typing import Final

EVENTS: Final = ("request", "inflight", "connect", "connection", "message", "send", "publish", "task")
# What is open for a while, which only a concurrency rule counts; all other events happen at a moment.
HELD: Final = ("inflight", "connection")
KEYS: Final = ("user", "ip", "user_or_ip", "api_key", "session", "tenant", "connection", "everyone")
ALGORITHMS: Final = (
    "fixed_window",
    "sliding_log",
    "sliding_window",
    "token_bucket",
    "leaky_bucket",
    "gcra",
    "concurrency",
    "damper",
)
ACTIONS: Final = ("reject", "shadow", "delay")
AT_LIMITS: Final = ("reject", "evict_oldest", "evict_idle")  # what becomes of the socket that is one too many
REFILLS: Final = ("continuous", "interval")
ESTIMATORS: Final = ("fast", "average")  # of a damper
UNITS: Final = ("calls", "bytes")
FAILURE_POLICIES: Final = ("local", "allow", "deny")
BUCKETS: Final = ("token_bucket", "leaky_bucket", "gcra")
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
AUDIENCES: Final = ("anonymous", "authenticated", "staff")
# Members of what has a name of its own: group:editors, tenant:acme.
AUDIENCE_KINDS: Final = ("group", "tenant")
# A log keeps an entry for each call, of which there are as many as units at most; past this a strict sliding_window
# holds the same cap in one value.
MAX_LOG: Final = 10_000
MAX_DAMPED: Final = 1_000_000_000_000  # sums of what is attempted stay whole numbers
MAX_RATES: Final = 10
MAX_RESOLUTION: Final = 30  # a Lua pattern has 32 captures
MAX_NAME: Final = 100
MAX_TIMES: Final = 100  # the limit, at which calls are refused
MAX_WARNINGS: Final = 10
