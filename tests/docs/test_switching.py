"""Of each pair on the page about other limiters, both halves refuse the same calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.cache import cache
from django.http import HttpRequest
from django.test import RequestFactory
from django_ratelimit.exceptions import Ratelimited

from django_throttle import limiter
from django_throttle.stores import MemoryStore
from tests.clock import FrozenClock
from tests.pages import shown

BLOCKS = shown("switching")
*DECORATED, _TEXT, _RATES = BLOCKS[3:]  # the first are REST framework's own
OURS = "django_throttle"


def pairs() -> Iterator[tuple[str, str]]:
    """Each after with the before above it, which may have two."""
    before = ""
    for code in DECORATED:
        if OURS in code:
            yield before, code
        else:
            before = code


PAIRS = list(pairs())
ADDRESSES, NETWORK = ("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")


@pytest.fixture(autouse=True)
def one_memory(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Others count in the cache, ours in a store on a clock that stands still; both are empty before and after."""
    store = MemoryStore(FrozenClock())
    monkeypatch.setattr(limiter, "get_store", lambda: store)
    settings.DJANGO_THROTTLE = {"DATABASE_RULES": False, "AGENT": False, "RULES": {}}
    cache.clear()
    yield
    cache.clear()


def run(code: str, settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "shown"}
    exec(code, found)
    if "DJANGO_THROTTLE" in found:
        settings.DJANGO_THROTTLE = {**settings.DJANGO_THROTTLE, **found["DJANGO_THROTTLE"]}
    return found


def requests(addresses: Iterable[str]) -> Iterator[HttpRequest]:
    """Calls of these addresses, a member of staff, two methods and two shops, more often than any limit."""
    users = (AnonymousUser(), User(pk=7, username="anna", is_staff=True))
    for user in users:
        for address in addresses:
            for method in ("GET", "POST"):
                for number in range(14):
                    path = f"/?shop={number % 2}"
                    request = RequestFactory().generic(method, path, REMOTE_ADDR=address)
                    request.user = user
                    yield request


def refused(view: Callable[[HttpRequest], Any], request: HttpRequest) -> bool:
    try:
        answer = view(request)
    except Ratelimited:
        return True
    return answer.status_code == 429 or answer.content == b"slow down"


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[after.split("{")[2].split('"')[1] for _, after in PAIRS])
def test_both_refuse_the_same_calls(before: str, after: str, settings: Any) -> None:
    answers = []
    addresses = ADDRESSES if "django_smart_ratelimit" in before else ADDRESSES + NETWORK  # as the page says
    for code in (before, after):
        found = run(code, settings)
        views = [found[name] for name in ("view", "other") if name in found]
        answers.append([refused(view, request) for request in requests(addresses) for view in views])
    old, new = answers
    assert old == new
    assert {True, False} == {*old}
