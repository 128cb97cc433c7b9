"""The overview as values and JSON."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django.utils import timezone

from django_throttle.core import Rule
from django_throttle.recording.overview import overview
from django_throttle.recording.read import sample
from django_throttle.stores import MemoryStore
from tests.recording.calls import call

LIMITED = Rule("api", "3/hour", algorithm="sliding_log")


def test_what_a_rule_did() -> None:
    store = MemoryStore()
    call(store, [LIMITED], "user:1", 4)
    found = overview(store, ["api", "idle"])
    api, idle = found.rules
    assert (api.hour_points[-1], api.day_points[-1]) == ((3, 1), (3, 1))
    assert (api.refused_share, api.hints) == (0.25, [])
    assert idle.hints == [], "nothing was recorded for a day"
    assert found.store_in_words.startswith(
        "No circuit breaker is open. 4 decisions in the last five minutes: 0.0% without"
    )
    assert json.loads(json.dumps(found.as_json()))["rules"][0]["day"]["refused"] == {"exceeded": 1}


def test_a_site_without_time_zones(settings: Any) -> None:
    settings.USE_TZ = False
    store = MemoryStore()
    call(store, [LIMITED], "user:1", 4)
    assert overview(store, ["api"]).rules[0].day_points[-1] == (3, 1)
    now = timezone.now()
    assert len(sample(store, now - timedelta(hours=1), now + timedelta(hours=1)).records) == 4
