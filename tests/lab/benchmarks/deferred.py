"""What deferring adds to a view that has the same task done later by itself: the decision, and who may ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from redis import Redis

from tests.lab.benchmarks.latency import PING, VIEW_CALLS
from tests.lab.benchmarks.play import another, one_by_one
from tests.lab.benchmarks.player import Play, Subject, compare
from tests.lab.benchmarks.table import Row

SECTION = "a deferred call's 202"
WAYS = ("enqueues", "enqueues after a PING", "defers")


def rows(url: str, rounds: int) -> Iterator[Row]:
    """With a database in memory, where an insert is as quick as it gets; each PING is of the same client."""
    subjects = [PING, *[Subject(way, "deferred", "view", (way,), VIEW_CALLS) for way in WAYS]]
    results = compare(subjects, url, rounds)
    bare, after_ping, ours = (results[way].took for way in WAYS)
    ratio, there = (ours - bare) / results[PING.name].took, (ours - bare) / (after_ping - bare)
    yield Row(SECTION, "a view that enqueues, and answers 202", bare, "µs")
    yield Row(SECTION, "@throttle with defer_to adds", ours - bare, "µs", ratio, "PING", 3.0)
    yield Row(SECTION, "the same beside a PING before the insert", None, "", there, "PING there", 3.0)


def view(url: str, way: str) -> Play:
    """A request straight to the view; no middleware."""
    from django.core.management import call_command
    from django.test import RequestFactory

    from django_throttle.decorators import throttle
    from testproject.reports import make_report

    call_command("migrate", verbosity=0)
    ping = Redis.from_url(url).ping
    answers: dict[str, Callable[[HttpRequest], HttpResponse]] = {
        "enqueues": lambda request: enqueued(make_report),
        "enqueues after a PING": lambda request: (ping(), enqueued(make_report))[1],
        "defers": throttle("deferred", defer_to=make_report)(lambda request: HttpResponse()),
    }
    request, answer = RequestFactory().post("/"), answers[way]
    answer(another(request))  # the first one is done at once

    def call(_: str) -> None:
        assert answer(another(request)).status_code == 202

    return one_by_one(call)


def enqueued(task: Any) -> HttpResponse:
    """As a site would write it without us."""
    starts_at = datetime.now(UTC)
    found = task.using(run_after=starts_at).enqueue()
    headers = {"Location": reverse("django_throttle:later", args=[found.id]), "Cache-Control": "no-store"}
    return JsonResponse({"state": "queued", "starts_at": starts_at}, status=202, headers=headers)
