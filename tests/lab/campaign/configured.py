"""The settings of Django in every process of a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import django
from django.conf import settings

from testproject.databases import database_settings
from tests.lab.campaign.limits import LIMITS, SETTINGS


def configure(given: Mapping[str, Any]) -> None:
    address = given["database"]
    file = {"ENGINE": "django.db.backends.sqlite3", "NAME": address}  # readers wait for whoever writes
    settings.configure(
        SECRET_KEY="campaign",
        INSTALLED_APPS=["django_throttle"],
        DATABASES={"default": database_settings(address) if "://" in address else file},
        DJANGO_THROTTLE={
            **SETTINGS,
            "REDIS": given["url"],
            "AGENT": given.get("agent", True),
            "PROCESSES": given.get("processes", 1),
            "RULES": {name: limit.rule.as_options() for name, limit in LIMITS.items() if limit.kind == "door"},
        },
        LOGGING_CONFIG=None,
        USE_TZ=True,
    )
    django.setup()
