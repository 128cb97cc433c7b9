"""The first call of a process imports nothing, so that a child that is forked meanwhile inherits no lock of a module.

Each case is a program of its own, as modules are imported once.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import slack

SITE = """
import os, sys, threading, time

REDIS, DATABASE = sys.argv[1], sys.argv[2]
RULES = {
    "local": {"rate": "100000/h"},
    "bought": {"rate": "100000/h", "prepaid": True},
    "slots": {"limit": 1000, "algorithm": "concurrency", "events": ["inflight"]},
    "damped": {"rate": "100000/s", "algorithm": "damper"},
}

urlpatterns = []

def by_door():
    import django
    from django.conf import settings
    settings.configure(
        SECRET_KEY="secret", ROOT_URLCONF="__main__", USE_TZ=True,
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_throttle"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATABASE}},
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": REDIS}},
        MIDDLEWARE=["django_throttle.middleware.ThrottleMiddleware"],
        DJANGO_THROTTLE={"RULES": RULES, "DEADLINE": 10.0},
    )
    django.setup()
    from django.core.handlers.wsgi import WSGIHandler
    from django.core.management import call_command
    from django.http import HttpResponse
    from django.test import RequestFactory
    from django.urls import path

    urlpatterns.append(path("", lambda request: HttpResponse("page"), name="page"))
    handler = WSGIHandler()

    def call():
        response = handler(RequestFactory().get("/").environ, lambda *_: None)
        assert response.status_code == 200, response.status_code
        response.close()

    return call

def by_limiter():
    # the engine alone, without settings
    from django_throttle.core import Rule
    from django_throttle.limiter import Limiter
    from django_throttle.stores import RedisStore

    rules = [Rule.from_options(name, options) for name, options in RULES.items() if name != "slots"]
    limiter = Limiter(rules, RedisStore(REDIS, deadline=5.0))

    def call():
        assert limiter.acquire("user:1").allowed

    return call

call = {"door": by_door, "limiter": by_limiter}[sys.argv[3]]()
before = set(sys.modules)
for _ in range(3):
    call()
until = time.monotonic() + 2.5  # seconds: the first turn of what runs in the background
while time.monotonic() < until:
    call()
    time.sleep(0.1)
print(sorted(set(sys.modules) - before))
"""


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("way", ["door", "limiter"])
def test_it_imports_nothing(way: str, redis_url: str, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SITE, redis_url, str(tmp_path / "db"), way]
    done = subprocess.run(program, capture_output=True, text=True, env=env, timeout=slack(60), check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
