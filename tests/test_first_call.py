"""The first call of a process imports nothing, so that a child that is forked meanwhile inherits no lock of a module.

Each case is a program of its own, as modules are imported once.
"""

from __future__ import annotations

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

def set_up(**own):
    import django
    from django.conf import settings
    settings.configure(
        SECRET_KEY="secret", ROOT_URLCONF="__main__", USE_TZ=True,
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_throttle"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATABASE}},
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": REDIS}},
        MIDDLEWARE=["django_throttle.middleware.ThrottleMiddleware"],
        DJANGO_THROTTLE={"RULES": RULES, "DEADLINE": 5.0, "RULES_WAIT": True, **own},
    )
    django.setup()

def by_door():
    from django.core.handlers.wsgi import WSGIHandler
    from django.core.management import call_command
    from django.http import HttpResponse
    from django.test import RequestFactory
    from django.urls import path

    set_up()
    urlpatterns.append(path("", lambda request: HttpResponse("page"), name="page"))
    handler = WSGIHandler()

    def call():
        response = handler(RequestFactory().get("/").environ, lambda *_: None)
        assert response.status_code == 200, response.status_code
        response.close()

    return call

def by_question():
    set_up(REDIS=REDIS, DATABASE_RULES=False)
    from django_throttle.limiter import allows

    def call():
        assert all(allows(name, "user:1") for name in RULES if name != "slots")

    return call

def by_limiter():
    from django_throttle.core import Rule
    from django_throttle.limiter import Limiter
    from django_throttle.stores import RedisStore

    limiters = [Limiter([Rule.from_options(*each)], RedisStore(REDIS, deadline=5.0)) for each in RULES.items()
                if each[0] != "slots"]

    def call():
        assert all(limiter.acquire("user:1").allowed for limiter in limiters)

    return call
"""

IMPORTS = """
call = {"door": by_door, "question": by_question, "limiter": by_limiter}[sys.argv[3]]()
before = set(sys.modules)
for _ in range(3):
    call()
until = time.monotonic() + 2.5  # seconds: the first turn of what runs in the background
while time.monotonic() < until:
    call()
    time.sleep(0.1)
print(sorted(set(sys.modules) - before))
"""

FORKS = """
import signal

call = {"door": by_door, "question": by_question, "limiter": by_limiter}[sys.argv[3]]()
first = threading.Thread(target=call)
first.start()
children = []
while first.is_alive() and len(children) < 40:
    child = os.fork()
    if not child:
        signal.alarm(20)
        code = 1
        try:
            call()
            code = 0
        finally:
            os._exit(code)
    children.append(child)
    time.sleep(0.002)
first.join()
print(len(children) > 0, {os.waitpid(child, 0)[1] for child in children} or {0})
"""


def run(program: str, *arguments: str, where: Path) -> str:
    """Return what a program prints; it raises nothing, and ends."""
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SITE + program, *arguments]
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), env.get("PYTHONPATH")]))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**env, "PYTHONPATH": paths},
        timeout=slack(60),
        check=False,
        cwd=where,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("way", ["door", "question", "limiter"])
def test_it_imports_nothing(way: str, redis_url: str, tmp_path: Path) -> None:
    assert run(IMPORTS, redis_url, str(tmp_path / "db.sqlite3"), way, where=tmp_path) == "[]\n"


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("way", ["question", "limiter"])
def test_children_that_are_forked_meanwhile_decide(way: str, redis_url: str, tmp_path: Path) -> None:
    """No request is made and no database read: Django's signals and SQLite have locks that no child gets rid of."""
    told = run(FORKS, redis_url, str(tmp_path / "db.sqlite3"), way, where=tmp_path)
    assert told == "True {0}\n"
