"""A report, which takes a second to make: within the rate while the visitor waits, over it later, by a task."""

from __future__ import annotations

import time
from importlib import import_module

from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_POST

from django_throttle.decorators import throttle
from django_throttle.later.site_queues import tasks_module

SECONDS = 1.0


# From Django 6.0 on: from django.tasks import task
@import_module(tasks_module()).task()  # type: ignore[misc,untyped-decorator,unused-ignore]
def make_report() -> None:
    time.sleep(SECONDS)


@require_POST
@throttle("reports", defer_to=make_report)
def report(request: HttpRequest) -> JsonResponse:
    time.sleep(SECONDS)
    return JsonResponse({"state": "done"})
