"""What spending costs the code that streams, and settling a client: it has its last byte before."""

from __future__ import annotations

import timeit
from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from tests.lab.benchmarks.table import Row

SECTION = "spending and settling"
CALLS, BLOCKS, REQUESTS = 20_000, 9, 300
USUAL = {"rate": "1000000/min", "key": "everyone"}
RULES: dict[str, Any] = {"calls": USUAL, "tokens": {**USUAL, "unit": "units", "reserve": 1_000_000}}


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(b"ok")


def timed(limited: Any, before: Any) -> tuple[float, float]:
    """Microseconds until the last byte is there, and those that closing the response then takes; the least of many.

    The view ``before`` is called in between, so that all begin with what it leaves in the processor's caches.
    """
    from django.test import RequestFactory  # here, as no site has it loaded while it serves

    until_sent, closing = [], []
    for _ in range(REQUESTS):
        before(RequestFactory().get("/")).close()
        request = RequestFactory().get("/")
        start = perf_counter()
        response = limited(request)
        b"".join(response)
        sent = perf_counter()
        response.close()
        until_sent.append(sent - start)
        closing.append(perf_counter() - sent)
    return min(until_sent) * 1e6, min(closing) * 1e6


def covered() -> float:
    """Microseconds for a unit that was reserved."""
    from django_throttle.core import Rule
    from django_throttle.core.commands import PastCharge, Refund, charge
    from django_throttle.sockets.frame_throttle import FrameState, FrameThrottle

    reserved = PastCharge(charge(Rule("tokens", **RULES["tokens"]), "everyone", 1_000_000), 0, 0)
    throttle = FrameThrottle(FrameState(charged=[Refund((reserved,))]))
    return min(timeit.repeat(lambda: throttle.spend(1), number=CALLS, repeat=BLOCKS)) / CALLS * 1e6


def rows(url: str, rounds: int) -> Iterator[Row]:
    import django

    django.setup()
    from django.core.signals import request_finished
    from django.db import close_old_connections

    from django_throttle.decorators import throttle

    request_finished.disconnect(close_old_connections)  # a view without a database
    settings.DJANGO_THROTTLE = {"REDIS": url, "RULES": RULES, "DATABASE_RULES": False, "AGENT": False}
    yield Row(SECTION, "a unit that is reserved is spent", covered(), "µs", asked=5.0)
    views = {name: throttle(name)(view) for name in RULES}
    found = [{name: timed(limited, views["calls"]) for name, limited in views.items()} for _ in range(rounds)]
    ratio = median(times["tokens"][0] / times["calls"][0] for times in found)
    sent, settled = (median(times["tokens"][part] for times in found) for part in (0, 1))
    beside = "a rule of calls"
    yield Row(SECTION, "until the last byte, with a reserve", sent, "µs", ratio=ratio, beside=beside, asked=1.25)
    yield Row(SECTION, "settling, after the last byte", settled, "µs")
