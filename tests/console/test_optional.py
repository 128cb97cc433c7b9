"""A site with the console and one without, each as ``django-admin startproject`` makes it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command

from django_throttle.observe import recorders
from django_throttle.rulebook import sources

SITE = """
INSTALLED_APPS += [{apps}]
MIDDLEWARE += ["django_throttle.middleware.ThrottleMiddleware"]
DJANGO_THROTTLE = {{"RECORD_IDENTS": {idents}, "RULES": {{"login": {{"rate": "2/min", "scopes": ["admin:login"]}}}}}}
"""
VISIT = """
import json, sys, warnings
import django
django.setup()
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.core.management import call_command, get_commands
from django.db import connection
from django.test import Client
from django_throttle.observe import recorders

call_command("migrate", verbosity=0)
call_command("makemigrations", check=True, verbosity=0)
client = Client(SERVER_NAME="localhost")
logins = [client.get("/admin/login/").status_code for _ in range(3)]
client.force_login(User.objects.create_superuser("ada"))
rules = "/admin/django_throttle/throttlerule/"
pages = {page: client.get(rules + page) for page in ("", "add/", "explain/?ident=ip:192.0.2.1", "overview/", "costs/")}
index = client.get("/admin/")
print(json.dumps({
    "checks": [message.id for message in run_checks()],
    "commands": sorted(name for name in get_commands() if name.startswith("throttle_")),
    "logins": logins,
    "pages": {page: answer.status_code for page, answer in pages.items()},
    "texts": "".join(answer.content.decode() for answer in [index, *pages.values()]),
    "tables": [name for name in connection.introspection.table_names() if "throttle_console" in name],
    "modules": [name for name in sys.modules if name.startswith("django_throttle.console")],
    "is_recorded": recorders.current is not None,
}))
"""
MAIN, CONSOLE = "django_throttle", "django_throttle.console"
OURS = {"throttle_backtest", "throttle_candidates", "throttle_costs", "throttle_overview"}
WORDS = ("Rules at work", "What requests cost", "Try before saving", "Refused lately", "candidate")


def visit(folder: Path, *apps: str, idents: bool = False) -> Any:
    call_command("startproject", "mysite", folder)
    with (folder / "mysite" / "settings.py").open("a") as file:
        file.write(SITE.format(apps=", ".join(map(repr, apps)), idents=idents))
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "mysite.settings", "PYTHONWARNINGS": "ignore"}
    line = [sys.executable, "-c", VISIT]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.usefixtures("servers")
def test_a_site_without_it_has_nothing_of_it(tmp_path: Path) -> None:
    site = visit(tmp_path, MAIN, idents=True)
    assert (site["checks"], site["logins"]) == (["django_throttle.W010"], [200, 200, 429])
    assert {page: 302 if page in ("overview/", "costs/") else 200 for page in site["pages"]} == site["pages"]
    assert [word for word in WORDS if word in site["texts"]] == []
    assert OURS.isdisjoint(site["commands"])
    assert (site["tables"], site["modules"], site["is_recorded"]) == ([], [], False)


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("apps", [(MAIN, CONSOLE), (CONSOLE, MAIN)], ids=["after", "before"])
def test_a_site_with_it_has_all_of_it_in_either_order(tmp_path: Path, apps: tuple[str, str]) -> None:
    site = visit(tmp_path, *apps, idents=True)
    assert (site["checks"], site["logins"]) == ([], [200, 200, 429])
    assert set(site["pages"].values()) == {200}
    assert [word for word in WORDS if word not in site["texts"]] == []
    assert {*site["commands"]} >= OURS
    assert (site["tables"], site["is_recorded"]) == (["throttle_console_throttlecandidate"], True)


def test_it_plugs_in_once_however_often_tests_load_apps_again() -> None:
    before = recorders.current, len(sources._sources)
    apps.get_app_config("throttle_console").ready()
    assert (recorders.current, len(sources._sources)) == before
