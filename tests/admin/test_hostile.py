"""Whatever somebody typed, sent or was called is shown by the admin's pages, and never run."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_throttle import rulebook
from django_throttle.call_facts import Facts
from django_throttle.connections import overview
from django_throttle.connections.open_sockets import open_sockets
from django_throttle.core.overrides import candidate_name
from django_throttle.identity.known_caller import KnownCaller
from django_throttle.models import ThrottleCandidate, ThrottleChange, ThrottleOverride, ThrottleRule
from django_throttle.observe.reports import ident_for_logs
from django_throttle.observe.route_costs import route_costs
from django_throttle.recording import own_records, recorder
from tests.admin.conftest import NASTY, Scripts, url
from tests.connections.recorder import sockets
from tests.doors import Enforce
from tests.observe.test_route_costs import used
from tests.recording.test_recorder import refusal

pytestmark = [pytest.mark.django_db, pytest.mark.row("A53")]
LISTS = ("throttlerule", "throttleoverride", "throttlecandidate", "throttlechange", "throttleconnection")


EVIL = f"{NASTY}</script><script>alert(1)</script>"


@pytest.fixture
def site(enforce: Enforce) -> Iterator[None]:
    """A site whose every name and text is hostile."""
    forget()
    enforce(**{f"settings {NASTY}": {"rate": "1/s", "scopes": [NASTY]}}, RECORD_IDENTS=True, DATABASE_RULES=True)
    ThrottleRule.objects.create(name=NASTY, rate="2/s", scopes=(NASTY,), description=NASTY)
    ThrottleCandidate.of(ThrottleRule(name=NASTY, rate="1/s", description=NASTY), NASTY, NASTY).save()
    mallory = User.objects.create_user(f"mallory {NASTY}")
    for kind, value in (("tenant", NASTY), ("user", str(mallory.pk)), ("ip", "192.0.2.1")):
        ThrottleOverride.objects.create(kind=kind, value=value, effect="block", reason=NASTY, created_by=NASTY)
    ThrottleChange.objects.update(who=NASTY, reason=NASTY, words=NASTY)
    sockets((f"a{EVIL}", f"user:{EVIL}"), scope=f"chat{EVIL}", path=f"/{EVIL}")
    route_costs.add(NASTY, used(12, 1500, 0.25))
    for rule in (NASTY, candidate_name(NASTY)):
        for ident in (NASTY, "ip:192.0.2.1"):
            recorder.happened(Facts(NASTY, (NASTY,), KnownCaller(ident), method=NASTY), refusal(rule, ident), 0.001)
    rulebook.refresh()
    yield
    forget()


def forget() -> None:
    own_records.forget()
    open_sockets.clear()
    overview.look_again()
    route_costs.take()


def pages() -> list[str]:
    """The address of every page."""
    lists = [url(f"{name}_changelist") for name in LISTS]
    models = (ThrottleRule, ThrottleOverride, ThrottleCandidate, ThrottleChange)
    rows = [url(f"{model._meta.model_name}_change", row.pk) for model in models for row in model.objects.all()]
    asked = [f"?ident=192.0.2.1&{field}={quote(NASTY)}" for field in ("scope", "method", "event", "ident")]
    explained = [f"{url('explain')}{text}" for text in [*asked, f"?ident={ident_for_logs(NASTY)}", "?ident=192.0.2.1"]]
    first = url("throttlerule_delete", ThrottleRule.objects.get().pk), url("overview"), url("costs")
    return [*lists, *rows, *explained, *first]


def test_nothing_runs_on_any_page(operator: Client, site: None) -> None:
    silent = []
    for address in pages():
        page = operator.get(address).content.decode()
        assert Scripts(page).found == [], address
        assert "<script>alert" not in page and NASTY not in page, address
        if "&lt;img" not in page:
            silent.append(address)
    assert silent == [], "pages that show nothing of it"


@pytest.mark.parametrize("name", LISTS)
def test_a_search_or_a_filter_is_text(operator: Client, site: None, name: str) -> None:
    fields = ("q", "who__exact", "algorithm__exact", "key", "kind__exact")
    for query in (f'q="{NASTY}</script>', "q=%25", *(f"{field}=%00" for field in fields)):
        with CaptureQueriesContext(connection) as asked:
            answer = operator.get(f"{url(f'{name}_changelist')}?{query}", follow=True)
        assert answer.status_code == 200 and Scripts(answer.content.decode()).found == []
        assert not any("\0" in each["sql"] for each in asked), "PostgreSQL cannot even be asked"
