"""Background threads of a process: beats, reports, and reading edited rules."""

from django_throttle.agent.jobs import (
    StoreJob,
    add_store_job,
    agents,
    disable_for,
    ensure,
    refund_prepaid,
    services,
    socket_ended,
    socket_started,
    stop,
    stop_for,
    watched,
)  # fmt: skip

__all__ = [
    "StoreJob", "add_store_job", "agents", "disable_for", "ensure", "refund_prepaid", "services", "socket_ended",
    "socket_started", "stop", "stop_for", "watched",
]  # fmt: skip
