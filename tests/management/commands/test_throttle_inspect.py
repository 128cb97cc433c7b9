"""The command that says who has how many sockets open."""

from __future__ import annotations

import io

import pytest
from django.core.management import call_command

from django_throttle.connections import overview
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.connections.reconcile import Reconciler
from django_throttle.connections.socket_control import SocketControl
from django_throttle.management.commands import throttle_inspect
from tests.connections.evictions import redis_store
from tests.connections.recorder import sockets
from tests.inside import count_in


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("throttle_inspect", *arguments, stdout=out)
    return out.getvalue()


def test_who_has_how_many(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = redis_store(redis_url)
    other = redis_store(redis_url)
    count_in(store, monkeypatch)
    monkeypatch.setattr(throttle_inspect, "ANSWER_SECONDS", 0.3)
    open_sockets.clear()
    overview.look_again()
    for one in (store, other):
        Reconciler(one).beat()
    sockets(("a", "user:1"), ("b", "user:1"), ("c", "user:2"))
    assert run().splitlines()[0] == "0 sockets open in 2 processes"
    for one in (store, other):
        SocketControl(one)()
    overview.look_again()
    lines = run().splitlines()
    assert lines[0] == "6 sockets open in 2 processes"  # both are this process
    assert lines[1].endswith(": 3 sockets open; 0 leases, of these and of requests in flight")
    assert lines[3:] == ["      4  user:1  (in 2 processes)", "      2  user:2  (in 2 processes)"]
    assert run("--most", "1").splitlines()[3:] == ["      4  user:1  (in 2 processes)"]
    open_sockets.clear()


def test_one_process_is_one(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = redis_store(redis_url)
    count_in(store, monkeypatch)
    monkeypatch.setattr(throttle_inspect, "ANSWER_SECONDS", 0.0)
    overview.look_again()
    Reconciler(store).beat()
    first, second = run().splitlines()
    assert first == "0 sockets open in 1 process"
    assert "has not answered (it has no sockets, or is too busy); 0 leases" in second
