"""manage.py throttle_candidates."""

import json
from typing import Any

import pytest
from django.core.management import CommandError

from django_throttle import limiter, rulebook
from django_throttle.console.models import ThrottleCandidate
from django_throttle.console.recording import RecordFlusher, recorder
from django_throttle.identity.call import Call
from django_throttle.models import ThrottleRule
from django_throttle.stores import get_store
from tests.console.conftest import By
from tests.management.shell import run

pytestmark = pytest.mark.django_db


def test_each_is_compared_with_its_rule(settings: Any, redis_url: str) -> None:
    settings.DJANGO_THROTTLE = {"RULES": {}, "AGENT": False, "REDIS": redis_url, "DEADLINE": 5.0}
    recorder.take()
    assert run("throttle_candidates") == "There are no candidates.\n"
    ThrottleRule.objects.create(name="api", rate="5/s")
    row = ThrottleCandidate.of(ThrottleRule(name="api", rate="3/s"), "api", "anna")
    row.share = 0.1
    row.save()
    rulebook.refresh()
    for _ in range(4):
        limiter.decide(Call("page", ("request",), By("user:1"), ident="user:1"))
    RecordFlusher(get_store())()
    said = run("throttle_candidates", "api")
    assert said.startswith("api: each user or address: 3 requests per second, enforced for 0.1 of all\n")
    assert "  Calls: 4\n  Both would refuse: 0\n" in said
    (found,) = json.loads(run("throttle_candidates", "--json"))
    assert (found["name"], found["share"], found["starts_at"], found["calls"]) == ("api", 0.1, None, 4)
    with pytest.raises(CommandError, match="There is no rule 'other'"):
        run("throttle_candidates", "other", "--json")
    row.delete()
    assert run("throttle_candidates", "api", "--json") == "[]\n"
    settings.DJANGO_THROTTLE = {"STORE": "memory"}
    with pytest.raises(CommandError, match="only each process knows"):
        run("throttle_candidates")
