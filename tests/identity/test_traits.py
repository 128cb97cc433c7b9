"""What a caller is: asked of the database at most once for each user, and never on the event loop."""

import logging
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import AnonymousUser, Group, User
from django.db import DatabaseError
from django.test import RequestFactory
from django.utils.functional import SimpleLazyObject

from django_throttle import limiter
from django_throttle.identity import AsgiCaller, RequestCaller, keys
from django_throttle.identity.call import Call
from django_throttle.runtime import is_on_event_loop
from tests.doors import Enforce
from tests.inside import unsaid


@pytest.fixture(autouse=True)
def site(monkeypatch: pytest.MonkeyPatch) -> None:
    unsaid(keys, monkeypatch)


def editor(name: str = "editor") -> User:
    user = User.objects.create_user(name)
    user.groups.add(Group.objects.get_or_create(name="editors")[0], Group.objects.get_or_create(name="a:b")[0])
    return User.objects.get(pk=user.pk)


def by_request(user: Any) -> RequestCaller:
    request = RequestFactory().get("/")
    request.user = user
    return RequestCaller(request)


def by_scope(user: Any) -> AsgiCaller:
    return AsgiCaller({"user": user})


BOTH = pytest.mark.parametrize("caller", [by_request, by_scope])


@BOTH
class TestWithoutDatabase:
    @pytest.mark.parametrize(
        ("user", "held"),
        [
            (None, {"anonymous"}),
            (AnonymousUser(), {"anonymous"}),
            (SimpleNamespace(is_authenticated=True, pk=1), {"authenticated"}),
            (SimpleNamespace(is_authenticated=True, pk=1, is_staff=False), {"authenticated"}),
            (SimpleNamespace(is_authenticated=True, pk=1, is_staff=True), {"authenticated", "staff"}),
            (SimpleNamespace(is_authenticated=False, pk=1, is_staff=True), {"anonymous"}),
        ],
    )
    def test_what_a_user_says_of_itself(self, caller: Any, user: Any, held: set[str]) -> None:
        traits = ("anonymous", "authenticated", "staff", "group:editors", "tenant:None", "nonsense", "")
        assert {trait for trait in traits if caller(user).is_(trait)} == held


@pytest.mark.django_db
@BOTH
class TestGroups:
    @pytest.mark.parametrize("lazy", [False, True])
    def test_are_asked_for_once(self, caller: Any, lazy: bool, django_assert_num_queries: Any) -> None:
        user: Any = editor()
        user = SimpleLazyObject(lambda saved=user: saved) if lazy else user
        with django_assert_num_queries(1):
            assert caller(user).is_("group:editors")
            assert caller(user).is_("group:a:b")
            assert not caller(user).is_("group:admins")
            assert not caller(user).is_("group:")

    @pytest.mark.parametrize(("failures", "found"), [(1, [True] * 4), (6, [False] * 3 + [True])])
    def test_a_database_that_fails_is_asked_once_more_and_is_no_error_of_the_call(
        self, caller: Any, failures: int, found: list[bool], monkeypatch: pytest.MonkeyPatch, caplog: Any
    ) -> None:
        user, read, errors = editor(), keys.group_names, iter([DatabaseError("gone")] * failures)

        def names(user: Any) -> frozenset[str]:
            for error in errors:
                raise error
            return read(user)

        monkeypatch.setattr(keys, "group_names", names)
        assert [caller(user).is_("group:editors") for _ in range(4)] == found
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * (not all(found))


AUDIENCE = {"rate": "1/min", "audience": ["group:editors"], "key": "user"}


@pytest.mark.django_db(transaction=True)
class TestOnTheEventLoop:
    async def test_so_does_a_socket_which_asks_once(self, enforce: Enforce, monkeypatch: pytest.MonkeyPatch) -> None:
        enforce(api={**AUDIENCE, "events": ["message"]})
        asked: list[object] = []
        read = keys.read_groups
        monkeypatch.setattr(keys, "read_groups", lambda user: (asked.append(user), read(user))[1])
        caller = AsgiCaller({"user": await sync_to_async(editor)()})
        call = Call("chat", ("message",), caller)
        assert [(await limiter.adecide(call)).allowed for _ in range(4)] == [True, False, False, False]
        assert len(asked) == 2, "once in vain on the loop, once in a thread"

    async def test_a_tenant_may_be_a_row_that_has_to_be_read(self, enforce: Enforce) -> None:
        class Member:
            is_authenticated = True

            @property
            def tenant(self) -> Any:
                return Group.objects.get(name="acme")

        await Group.objects.acreate(name="acme")
        enforce(api={"rate": "1/min", "key": "tenant"}, TENANT="user.tenant.name")
        caller = AsgiCaller({"user": Member()})
        found = [(await limiter.adecide(Call("chat", ("request",), caller))).allowed for _ in range(2)]
        assert found == [True, False]


@pytest.mark.parametrize("engine", ["cache", "file"])
@pytest.mark.parametrize("key", ["session", "session+ip"])
async def test_sessions_that_no_database_has_are_read_in_a_thread_all_the_same(
    enforce: Enforce, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, key: str
) -> None:
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    settings.SESSION_FILE_PATH = str(tmp_path)
    store = import_module(settings.SESSION_ENGINE).SessionStore
    known = store()
    known["cart"] = 1
    await sync_to_async(known.save)()
    read, held_up = store.load, []

    def load(session: Any) -> Any:
        held_up.append(is_on_event_loop())
        return read(session)

    monkeypatch.setattr(store, "load", load)
    enforce(api={"rate": "1/min", "key": key, "events": ["connect"]}, other={"rate": "9/min", "key": "ip"})
    decisions = []
    for events in (("connect",), ("connect",), ("request",)):
        caller = AsgiCaller({"session": store(known.session_key), "client": ("203.0.113.9", 1)})
        decisions.append((await limiter.adecide(Call("chat", events, caller))).allowed)
    assert decisions == [True, False, True]
    assert held_up == [False, False], "not at all where no rule asks"
