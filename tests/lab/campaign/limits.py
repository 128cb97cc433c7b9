"""The limits of the campaign: one of every algorithm and policy, small enough to be reached within a second."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import django
from django.conf import settings

from django_throttle.core import Rule
from testproject.databases import database_settings

WINDOW = 2
LIMIT = 40
SLOTS = 6
MANY = "1000000/366d"
DEADLINE = 0.1
SETTINGS = {
    "PROCESS_TTL": 5.0, "DEADLINE": DEADLINE,
    "KEY_SECRET": "the same in all processes of the campaign",
}  # fmt: skip


def rate_of(limit: int) -> str:
    return f"{limit}/{WINDOW}s"


class Limit(NamedTuple):
    """A rule, how it is used and checked (``kind``), and how often compared with others."""

    rule: Rule
    kind: str = "rate"
    weight: int = 4

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def ident(self) -> str:
        return f"user:{self.name}"

    def of(self, who: int) -> str:
        """The ident of one of many callers; but for ``many``, all of them are one."""
        return f"user:{who}" if self.kind == "many" else self.ident


def _limit(name: str, kind: str = "rate", weight: int = 4, **options: Any) -> Limit:
    if "limit" not in options:
        options.setdefault("rate", rate_of(LIMIT))
    options.setdefault("on_store_failure", "deny")
    return Limit(Rule(name, **options), kind, weight)


LIMITS = {
    one.name: one
    for one in (
        _limit("fixed", algorithm="fixed_window"),
        _limit("calendar", algorithm="fixed_window", rate="300/hour", timezone="Europe/Berlin", weight=2),
        _limit("log", algorithm="sliding_log"), _limit("sliding", algorithm="sliding_window"),
        _limit("sliding4", algorithm="sliding_window", resolution=4),
        _limit("strict", algorithm="sliding_window", resolution=4, strict=True),
        _limit("gcra", algorithm="gcra", burst=10), _limit("token", algorithm="token_bucket"),
        _limit("interval", algorithm="token_bucket", refill="interval", burst=20),
        _limit("leaky", algorithm="leaky_bucket", burst=20),
        _limit("queue", algorithm="leaky_bucket", burst=10, action="delay"),
        _limit("slots", "lease", 12, algorithm="concurrency", limit=SLOTS),
        _limit("local_slots", "lease", 8, algorithm="concurrency", limit=SLOTS, on_store_failure="local"),
        _limit("local_fixed", algorithm="fixed_window", on_store_failure="local"),
        _limit("local_log", algorithm="sliding_log", on_store_failure="local"),
        _limit("local_strict", algorithm="sliding_window", resolution=4, strict=True, on_store_failure="local"),
        _limit("local_gcra", algorithm="gcra", burst=10, on_store_failure="local"),
        _limit("damped", "damper", 12, algorithm="damper", rate="60/s", on_store_failure="local"),
        _limit("calm", "calm", 1, algorithm="damper", rate="1000/s", on_store_failure="local"),
        _limit("prepaid", "prepaid", 12, algorithm="sliding_log", prepaid=True),
        _limit("door", "door", algorithm="sliding_log", scopes=("door",), key="everyone"),
        _limit("many", "many", 6, rate="5/2s", on_store_failure="local"),
        _limit("tally", "tally", 6, algorithm="fixed_window", rate=MANY),
        _limit("local_tally", "local tally", 6, algorithm="fixed_window", rate=MANY, on_store_failure="local"),
    )
}  # fmt: skip


def configure(given: Mapping[str, Any]) -> None:
    address = given["database"]
    file = {"ENGINE": "django.db.backends.sqlite3", "NAME": address}  # readers wait for whoever writes
    settings.configure(
        SECRET_KEY="campaign",
        INSTALLED_APPS=["django_throttle"],
        DATABASES={"default": database_settings(address) if "://" in address else file},
        DJANGO_THROTTLE={
            **SETTINGS, "REDIS": given["url"], "PROCESSES": given.get("processes", 1),
            "RULES": {name: limit.rule.as_options() for name, limit in LIMITS.items() if limit.kind == "door"},
        },
        LOGGING_CONFIG=None,
        USE_TZ=True,
    )  # fmt: skip
    django.setup()
