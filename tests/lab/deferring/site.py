"""A site whose views are deferred, one to django.tasks and one to Celery. The work is a line in a file."""

import os
import time
from importlib import import_module
from typing import Any

from celery import Celery
from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from django_throttle.decorators import throttle
from django_throttle.later.site_queues import tasks_module

app = Celery("deferring", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"], set_as_current=False)
app.conf.broker_transport_options = {
    "visibility_timeout": float(os.environ.get("VISIBILITY", "3600")),
    "unacked_restore_interval": 1,  # seconds between two looks for what has come back
    "unacked_restore_throttle": 1,
}
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_hijack_root_logger = False


def note(number: str) -> None:
    """One write for each run, so that a worker that is killed leaves a line or none."""
    file = os.open(os.environ["RAN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{number} {time.time():.6f}\n".encode())
    os.close(file)


@import_module(tasks_module()).task()  # type: ignore[misc,unused-ignore]
def work(number: str) -> None:
    note(number)


@app.task(name="deferring.work", acks_late=True)  # type: ignore[misc,unused-ignore]
def celery_work(number: str) -> None:
    """A kill often comes after the note and before the message is acknowledged: then it runs twice."""
    note(number)
    time.sleep(0.02)


def payload(request: HttpRequest) -> Any:
    return {"number": request.GET["number"]}


def view(request: HttpRequest) -> HttpResponse:
    note(request.GET["number"])
    return HttpResponse("done at once")


urlpatterns = [
    path("django", throttle("work", defer_to=work, payload=payload)(view)),
    path("celery", throttle("work", defer_to=celery_work, payload=payload)(view)),
    path("later/", include("django_throttle.urls")),
]
