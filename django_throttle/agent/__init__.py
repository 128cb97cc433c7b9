"""The background thread of a process: beats, reports, and reading rules that were edited."""

from django_throttle.agent.jobs import (
    StoreJob,
    add_store_job,
    agents,
    disable_for,
    ensure,
    give_back,
    services,
    socket_ended,
    stop,
    stop_for,
    watched,
)

__all__ = [
    "StoreJob",
    "add_store_job",
    "agents",
    "disable_for",
    "ensure",
    "give_back",
    "services",
    "socket_ended",
    "stop",
    "stop_for",
    "watched",
]
