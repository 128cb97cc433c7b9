"""Errors: what each is besides, what it says, and that it comes out of a worker's process."""

import pickle
import subprocess
import sys
from importlib.metadata import metadata
from typing import Any

import pytest
from celery import Celery

from django_throttle.contrib.httpx import CallRefused
from django_throttle.core import Decision
from django_throttle.exceptions import DISTRIBUTION, PublishRefused, PutOffTooOften, Refused, needs_extra

NO = Decision(allowed=False, rule="mails", limit=2, remaining=0, retry_after=2.5)


@pytest.mark.parametrize(
    "error",
    [
        Refused(NO), Refused(NO._replace(retry_after=None)), PublishRefused(NO, "room", 7),
        PutOffTooOften(NO, "shop.mail", 3), CallRefused(NO, message="not sent: a call to crm.example"),
    ],
)  # fmt: skip
def test_a_refusal_comes_back_from_another_process_and_a_result_backend(error: Any) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (vars(copy), str(copy)) == (vars(error), str(error))
    backend = Celery("shop", backend="cache+memory://", set_as_current=False).backend
    copy = backend.exception_to_python(backend.decode(backend.encode(backend.prepare_exception(error, "json"))))
    assert type(copy) is type(error)
    known = Decision(allowed=False, rule="mails", retry_after=error.decision.retry_after)
    assert vars(copy) == vars(error) | {"decision": known}
    assert (str(copy), copy.args) == (str(error), error.args)


def test_a_refusal_of_which_only_the_text_is_known() -> None:
    error = Refused("refused elsewhere")
    assert (str(error), error.decision) == ("refused elsewhere", Decision(allowed=False, retry_after=None))


WITHOUT = """
import sys
sys.modules[{package!r}] = None
import django
from django.conf import settings
apps = ["django.contrib.auth", "django.contrib.contenttypes", "django_throttle"]
settings.configure(INSTALLED_APPS=apps, SECRET_KEY="key")
django.setup()
try:
    {use}
except ModuleNotFoundError as error:
    print(error)
"""
PUBLISH = "from django_throttle.channels import *; throttled_group_send_sync('room', {}, publisher='user:1')"


@pytest.mark.parametrize(
    ("missing", "message"), [("httpx", "httpx is not installed: pip"), ("httpcore", "no httpcore")]
)
def test_only_what_an_extra_brings_is_advised(missing: str, message: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=message), needs_extra("httpx", "httpx"):
        raise ModuleNotFoundError(f"no {missing}", name=missing)


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(
    ("extra", "package", "use"),
    [
        ("httpx", "httpx", "import django_throttle.contrib.httpx"),
        ("graphql", "graphql", "import django_throttle.contrib.graphql"),
        ("drf", "rest_framework", "import django_throttle.drf"),
        ("prometheus", "prometheus_client", "import django_throttle.contrib.prometheus"),
        ("opentelemetry", "opentelemetry", "import django_throttle.contrib.opentelemetry"),
        ("channels", "channels", PUBLISH),
    ],
)
def test_what_misses_an_extra_says_which(extra: str, package: str, use: str) -> None:
    assert extra in (metadata(DISTRIBUTION).get_all("Provides-Extra") or ())
    program = [sys.executable, "-W", "ignore", "-c", WITHOUT.format(package=package, use=use)]
    told = subprocess.run(program, capture_output=True, text=True, check=True)
    assert told.stdout == f'{package} is not installed: pip install "django-throttle-rules[{extra}]"\n', told.stderr
