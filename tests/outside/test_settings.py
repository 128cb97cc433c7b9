"""The settings that each page shows, pasted after the tutorial's: the site passes the checks, and counts in Redis."""

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
WHOLE = ("README.md", "drf.rst", "index.rst", "quickstart.rst", "saas.rst")  # for a site that has no settings yet
PAGES = sorted({block.page for block in FOUND})
APPS = 'INSTALLED_APPS += ["rest_framework", "django_throttle", "django_throttle.console"]'
START = """
from importlib import import_module
from django.conf import settings
from django.core.management import call_command
from django.test import Client
from django_throttle.stores import get_store

# The users of these pages have a tenant, and their views and some modules are not shown.
settings.SILENCED_SYSTEM_CHECKS = [f"django_throttle.{number}" for number in ("W095", "W088", "W089", "W101")]
call_command("check", fail_level="WARNING")
import_module(settings.ROOT_URLCONF)
print(Client(SERVER_NAME="localhost").get("/admin/login/").status_code, type(get_store()).__name__)
"""
RULES = """
from django_throttle.conf import conf
from django_throttle.stores import get_store
print(type(get_store()).__name__, *sorted(conf().RULES), sep="\\n")
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
    return at_once({name: partial(start, project, name) for name in PAGES})


def tutorial(project: Project, name: str) -> Project:
    site = project.copy(project.folder.parent / name.replace(".", "-"))
    return site.write(*(block for block in page("quickstart.rst") if block.file))


def paste(site: Project, blocks: list[Block]) -> None:
    """Append settings; a block that is there already, word for word, is not pasted again."""
    for code in dict.fromkeys(block.code for block in blocks):
        site.append("mysite/settings.py", code)


def start(project: Project, name: str) -> str:
    """What a site prints that has the settings of this page, and the modules that it shows beside them."""
    site = project.copy(project.folder.parent / name) if name in WHOLE else tutorial(project, name)
    paste(site, [block for block in FOUND if block.page == name])
    modules = [beside for beside in page(name) if beside.file.endswith(".py") and not beside.sets]
    site.write(*(beside for beside in modules if beside.file != "mysite/asgi.py" or "consumers" in beside.code))
    return site.python_code(START)


@pytest.mark.parametrize("name", PAGES)
def test_they_start_a_site(name: str, started: dict[str, Future[str]]) -> None:
    assert started[name].result(timeout=120).splitlines()[-1] == "200 RedisStore"


@pytest.mark.parametrize("order", [1, -1])
def test_those_of_all_pages_in_any_order_count_in_redis(project: Project, order: int) -> None:
    blocks = [block for block in FOUND if block.page not in WHOLE][::order]
    site = tutorial(project, f"all{order}")
    paste(site, blocks)
    store, *rules = site.python_code(RULES).splitlines()
    assert store == "RedisStore"
    assert {"api", "sockets", "monthly", "login by name", "tabs", "uploads", "mails", "graphql", "crm"} <= {*rules}


def test_no_block_is_a_fragment_or_assigns_what_an_earlier_page_has_set() -> None:
    assert FOUND and not [str(block) for block in FOUND if "RULES" in block.sets]
    for block in BLOCKS:
        if block.language == "python":
            compile(block.code, str(block), "exec")
    assigned = ("DJANGO_THROTTLE = ", "REST_FRAMEWORK = ", "MIDDLEWARE = ", '"django_throttle",', '"django_throttle"]')
    shown = [block for block in FOUND if block.page not in WHOLE and "in place of" not in block.caption]
    assert [str(block) for block in shown for text in assigned if f"\n{text}" in f"\n{block.code}"] == []
