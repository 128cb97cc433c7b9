"""Every block of settings, of every page, starts a site: it passes the checks, and answers a request."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from tests.outside.pages import BLOCKS, Block, page
from tests.outside.project import Project, at_once
from tests.servers import RedisServer

FOUND = [block for block in BLOCKS if block.sets and block.file in ("", "mysite/settings.py")]
APPS = 'INSTALLED_APPS += ["rest_framework", "django_throttle", "django_throttle.console"]'
START = """
from importlib import import_module
from django.conf import settings
from django.core.management import call_command
from django.test import Client

# The users of these pages have a tenant, and their views are in other blocks.
settings.SILENCED_SYSTEM_CHECKS = [f"django_throttle.{number}" for number in ("W013", "W088", "W089")]
call_command("check", fail_level="WARNING")
import_module(settings.ROOT_URLCONF)
print(Client(SERVER_NAME="localhost").get("/admin/login/").status_code)
"""


@pytest.fixture(scope="module")
def project(site_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project as django-admin makes it, and a database with all tables."""
    with RedisServer() as redis:
        project = Project(site_python, tmp_path_factory.mktemp("settings") / "mysite", redis.url).start()
        with_tables = project.copy(project.folder.parent / "with-tables")
        with_tables.append("mysite/settings.py", APPS)
        with_tables.manage("migrate")
        (with_tables.folder / "db.sqlite3").rename(project.folder / "db.sqlite3")
        yield project


@pytest.fixture(scope="module")
def started(project: Project) -> dict[str, Future[str]]:
    return at_once({str(block): partial(start, project, block) for block in FOUND})


def start(project: Project, block: Block) -> str:
    """What a site prints that has this block in its settings, and the modules that the page shows beside it."""
    site = project.copy(project.folder.parent / str(block).replace(":", "-"))
    if "INSTALLED_APPS" not in block.sets:
        site.append("mysite/settings.py", APPS)
    site.append("mysite/settings.py", block.code)
    modules = [beside for beside in page(block.page) if beside.file.endswith(".py") and not beside.sets]
    site.write(*(beside for beside in modules if beside.file != "mysite/asgi.py" or "consumers" in beside.code))
    return site.python_code(START)


@pytest.mark.parametrize("block", FOUND, ids=str)
def test_it_starts_a_site(block: Block, started: dict[str, Future[str]]) -> None:
    assert started[str(block)].result(timeout=120).splitlines()[-1] == "200"


def test_rules_stand_where_they_belong_and_no_block_is_a_fragment() -> None:
    """``RULES = {…}`` in a module of settings does nothing."""
    assert FOUND and not [str(block) for block in FOUND if "RULES" in block.sets]
    for block in BLOCKS:
        if block.language == "python":
            compile(block.code, str(block), "exec")
