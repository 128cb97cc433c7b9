"""The environment of the sites holds the wheel as pip installs it, and nothing of this tree."""

from __future__ import annotations

import os
from pathlib import Path

from tests.outside.environments import DJANGO, ROOT, environ, make_environment, run
from tests.servers import RedisServer

SHOW = """
import django, django_throttle, platform, sys
print(".".join(platform.python_version_tuple()[:2]), django.__version__, django_throttle.__file__, *sys.path, sep="\\n")
"""


def test_the_package_comes_from_the_wheel(site_python: Path, tmp_path: Path) -> None:
    """``make outside-versions`` names both versions."""
    told = run(str(site_python), "-c", SHOW, cwd=tmp_path, env=environ(site_python)).splitlines()
    python, django, package, *paths = told
    assert python == os.environ.get("OUTSIDE_PYTHON", f"python{python}").removeprefix("python")
    assert f"{django}.".startswith(f"{os.environ.get('OUTSIDE_DJANGO', django)}.")
    assert Path(package).is_relative_to(site_python.parents[1])
    assert not [path for path in paths if path and Path(path).is_relative_to(ROOT)]


DECIDE = """
import sys
import django
from django.conf import settings

apps = ["django.contrib.auth", "django.contrib.contenttypes", "django_throttle"]
settings.configure(INSTALLED_APPS=apps, SECRET_KEY="a key", DJANGO_THROTTLE={})
django.setup()

from django_throttle.core import Rule
from django_throttle.limiter import Limiter
from django_throttle.stores import MemoryStore, RedisStore

rules = [Rule("a", "2/min"), Rule("b", "5/min", algorithm="gcra")]
for store in (MemoryStore(), RedisStore(sys.argv[1], deadline=5)):
    decision = Limiter(rules, store).acquire("user:1")
    print(type(store).__name__, decision.allowed, decision.remaining, decision.degraded)
"""


def test_it_decides_without_any_extra(wheel: Path, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "plain", str(wheel), *DJANGO)
    with RedisServer() as redis:
        command = (str(python), "-I", "-W", "error", "-c", DECIDE, redis.url)
        told = run(*command, cwd=tmp_path, env=environ(python)).splitlines()
    assert told == ["MemoryStore True 1 False", "RedisStore True 1 False"]
