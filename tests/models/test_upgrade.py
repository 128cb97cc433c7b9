"""A checkout whose tables had a column for each option gets here by the steps of the changelog."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from django_throttle.models import ThrottleOverride, ThrottleRule
from django_throttle.rulebook import sources

#: What commands of commit d5f19c4 wrote: ``throttle_rules export``, and ``dumpdata`` of overrides.
RULES: dict[str, dict[str, Any]] = {
    "api": {
        "rate": "100/min", "key": "user", "scopes": ["search", "chat"], "methods": ["POST"], "audience": ["staff"],
        "algorithm": "token_bucket", "burst": 20, "plans": ["group:gold = 900/min"], "count_on": [401, 403],
        "description": "Why.",
    },
    "open": {"algorithm": "concurrency", "limit": 5, "at_limit": "evict_idle", "events": ["connection"]},
    "quota": {"rates": ["10/s", "1000/day"], "enforce_at": 2.5, "warn_at": [0.8, 1.0], "enabled": False},
}  # fmt: skip
OVERRIDE = {
    "kind": "user", "value": "42", "rules": "api,quota", "effect": "multiply", "factor": 2.0, "rate": "", "limit": None,
    "until": None, "reason": "launch", "created_by": "", "created_at": "2026-11-27T22:56:33.147Z",
}  # fmt: skip


def test_rules_and_overrides_are_kept(
    tmp_path: Path, django_db_blocker: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    rules, overrides = tmp_path / "rules.json", tmp_path / "overrides.json"
    rules.write_text(json.dumps(RULES))
    overrides.write_text(json.dumps([{"model": "django_throttle.throttleoverride", "pk": 1, "fields": OVERRIDE}]))
    options = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db.sqlite3"), "OPTIONS": {}}
    monkeypatch.setitem(connections.settings, "default", {**connections.settings["default"], **options})

    def upgrade() -> None:
        call_command("migrate", verbosity=0)
        call_command("throttle_rules", "import", str(rules))
        call_command("loaddata", str(overrides), verbosity=0)
        call_command("throttle_rules", "export")
        reading = sources.read()
        assert not reading.faults and len(reading.database.overrides) == 1
        assert ThrottleRule.objects.get(name="quota").options == {"enforce_at": 2.5, "warn_at": [0.8, 1.0]}
        assert ThrottleOverride.objects.get().rules == ("api", "quota")
        connections.close_all()

    with django_db_blocker.unblock(), ThreadPoolExecutor(1) as thread:
        thread.submit(upgrade).result()
    imported, exported = capsys.readouterr().out.split("{", 1)
    assert "3 added, 0 changed, 0 removed" in imported
    assert json.loads("{" + exported) == RULES
