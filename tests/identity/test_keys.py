"""The keys and traits of callers: what each finds in a request and in a scope, and that no two share an ident.

The database is asked about a user at most once, and never on the event loop.
"""

import logging
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import AnonymousUser, Group, User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.backends.signed_cookies import SessionStore as CookieSession
from django.db import DatabaseError
from django.test import RequestFactory
from django.utils.functional import SimpleLazyObject
from hypothesis import given
from hypothesis import strategies as st

from django_throttle import limiter
from django_throttle.admin.rules import key_choices
from django_throttle.core import Override, Rule
from django_throttle.core.descriptions import describe
from django_throttle.core.descriptions import key_in_words as in_words
from django_throttle.core.headers import may_see
from django_throttle.core.key import KEY_KINDS, KeyKind
from django_throttle.core.overrides import subject_kinds
from django_throttle.exceptions import InvalidRule
from django_throttle.identity import AsgiCaller, RequestCaller, keys
from django_throttle.identity.call import Call
from django_throttle.identity.caller import IdentCaller
from django_throttle.identity.keys import combined, ident_of
from django_throttle.rulebook.sources import check_allowed
from django_throttle.runtime import is_on_event_loop
from tests.doors import Enforce
from tests.inside import unsaid
from tests.strategies import KEYS

ADDRESS = "192.0.2.1"
returned: Any = None


def function(subject: object) -> Any:
    """A function of a site; returns what the test says."""
    return returned


@pytest.fixture(params=["request", "scope"])
def caller(request: pytest.FixtureRequest) -> Any:
    """Makes the caller of a request, and that of a scope, of the same attributes."""

    def of_request(**attributes: Any) -> RequestCaller:
        made = RequestFactory(REMOTE_ADDR=ADDRESS).get("/")
        for name, value in attributes.items():
            setattr(made, name, value)
        return RequestCaller(made)

    def of_scope(**attributes: Any) -> AsgiCaller:
        return AsgiCaller({"client": (ADDRESS, 1), **attributes})

    return of_request if request.param == "request" else of_scope


@pytest.fixture
def site(settings: Any) -> Any:
    def site(**given: Any) -> None:
        settings.DJANGO_THROTTLE = {**given}

    return site


HELD = {"user": User(pk=5), "tenant": "acme"}
SLUG = {"user": SimpleNamespace(tenant=SimpleNamespace(slug="acme"))}
BY_ID = {"user": SimpleNamespace(tenant_id="acme", is_authenticated=True)}


@pytest.mark.parametrize(
    ("path", "attributes", "key", "ident"),
    [
        *(("", {"user": User(pk=number)}, "user", f"user:{number}") for number in (0, 5)),
        *(("", {"user": user}, "user", None) for user in (None, AnonymousUser(), User(pk=None))),
        *(("", {"user": user}, "user_or_ip", f"ip:{ADDRESS}") for user in (None, AnonymousUser(), User(pk=None))),
        ("", {"user": SimpleNamespace(pk=ADDRESS, is_authenticated=True)}, "user_or_ip", f"user:{ADDRESS}"),
        ("tenant", {"tenant": "acme"}, "tenant", "tenant:acme"),
        *((path, {"tenant": SimpleNamespace(pk="acme")}, "tenant", "tenant:acme") for path in ("tenant", "tenant.pk")),
        *(("tenant", {"tenant": Group(pk=pk)}, "tenant", pk and f"tenant:{pk}") for pk in (None, 3)),
        ("user.tenant_id", BY_ID, "tenant", "tenant:acme"),
        ("user.tenant.slug", SLUG, "tenant", "tenant:acme"),
        ("tenant.name", {"tenant": {"name": "acme"}}, "tenant", "tenant:acme"),
        ("site.pk", {"site": SimpleNamespace(pk="acme")}, "tenant", "tenant:acme"),  # no module of that name
        *(("user.tenant_id", attributes, "tenant", None) for attributes in ({"user": AnonymousUser()}, {})),
        *((path, {"tenant": None}, "tenant", None) for path in ("tenant.pk", "tenant.pk.name")),
        *((path, {"tenant": name}, "tenant", None) for path, name in (("tenant", ""), ("", "acme"))),
        # All parts of a joined key count, in their order, or none.
        ("", HELD, "user+ip", f"user+ip:user:5+ip:{ADDRESS}"),
        ("", HELD, "ip+user", f"ip+user:ip:{ADDRESS}+user:5"),
        ("tenant", HELD, "tenant+user_or_ip", "tenant+user_or_ip:tenant:acme+user:5"),
        ("tenant", {"tenant": "acme"}, "tenant+user_or_ip", f"tenant+user_or_ip:tenant:acme+ip:{ADDRESS}"),
        *(("tenant", held, "tenant+user", None) for held in ({"tenant": "acme"}, {"user": User(pk=5)})),
    ],
)
def test_the_ident_of_a_caller(
    caller: Any, site: Any, path: str, attributes: dict[str, Any], key: str, ident: str | None
) -> None:
    site(TENANT=path)
    assert caller(**attributes).ident(key) == ident
    if key == "tenant":
        assert caller(**attributes).is_("tenant:acme") == (ident == "tenant:acme")
        assert not caller(**attributes).is_("tenant:None")


@pytest.mark.parametrize(("says", "ident"), [("acme", "tenant:acme"), (7, "tenant:7"), (None, None), ("", None)])
def test_a_tenant_is_what_a_function_says(
    caller: Any, site: Any, monkeypatch: Any, says: object, ident: str | None
) -> None:
    site(TENANT=f"{__name__}.function")
    monkeypatch.setattr(f"{__name__}.returned", says)
    assert caller().ident("tenant") == ident
    assert caller(user=AnonymousUser()).ident("user") is None


@pytest.mark.parametrize("tenant", [object(), ["acme"], True, {"name": "acme"}])
def test_a_tenant_that_has_no_one_text_counts_by_the_address(caller: Any, site: Any, tenant: Any) -> None:
    site(TENANT="tenant")
    assert caller(tenant=tenant).ident("tenant") == f"ip:{ADDRESS}" and not caller(tenant=tenant).is_("tenant:acme")


class TestApiKey:
    def test_is_told_by_a_hash(self, caller: Any, site: Any) -> None:
        site(KEY_SECRET="one")
        found = caller(auth="s3cret").ident("api_key")
        assert found.startswith("api_key:") and "s3cret" not in found and len(found) == 30
        assert caller(auth="s3cret", user=User(pk=5)).ident("api_key") == found
        assert caller(auth="other").ident("api_key") != found
        site(KEY_SECRET="two")
        assert caller(auth="s3cret").ident("api_key") != found

    def test_every_kind_is_another(self, caller: Any) -> None:
        kinds = ["5", User(pk=5), Group(pk=5), "auth.user:6", UUID(int=5), "~" + "0" * 64]
        assert len({caller(auth=kind).ident("api_key") for kind in kinds}) == len(kinds)
        assert caller(auth=5).ident("api_key") == caller(auth="5").ident("api_key")

    def test_the_text_of_a_row_is_the_key_itself(self, caller: Any) -> None:
        from django.contrib.sessions.models import Session

        assert caller(auth=Session(pk="s3cret")).ident("api_key") == caller(auth="s3cret").ident("api_key")

    @pytest.mark.parametrize("auth", [None, "", True, {"jti": "x"}, ["x"], b"x", object(), User(pk=None), Decimal(1)])
    def test_else_the_user_else_the_address(self, caller: Any, auth: Any) -> None:
        assert caller(auth=auth, user=User(pk=5)).ident("api_key") == "user:5"
        assert caller(auth=auth).ident("api_key") == f"ip:{ADDRESS}"

    def test_no_header_is_one(self) -> None:
        headers = {"Authorization": "Token s3cret", "X-Api-Key": "s3cret"}
        request = RequestFactory(REMOTE_ADDR=ADDRESS).get("/", headers=headers)
        assert RequestCaller(request).ident("api_key") == f"ip:{ADDRESS}"
        lines = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        assert AsgiCaller({"client": (ADDRESS, 1), "headers": lines}).ident("api_key") == f"ip:{ADDRESS}"


@pytest.mark.django_db
def test_a_session_is_its_key_and_a_forged_one_is_none(caller: Any) -> None:
    session = SessionStore()
    session["cart"] = 1
    session.create()
    again = SessionStore(session.session_key)
    assert caller(session=again).ident("session") == f"session:{session.session_key}"
    for forged in (None, SessionStore(), SessionStore("forged" * 5), CookieSession("forged" * 5)):
        assert caller(session=forged).ident("session") is None
    assert caller().ident("session") is None


class TestSeveral:
    def test_a_function_may_be_one_of_them(self, caller: Any, site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        site()
        key = f"ip+{__name__}.function"
        monkeypatch.setattr(f"{__name__}.returned", "gold+1")
        assert caller().ident(key) == f"{key}:ip:{ADDRESS}+{__name__}.function:gold%2B1"
        monkeypatch.setattr(f"{__name__}.returned", None)
        assert caller().ident(key) is None
        assert not caller().lacks_address(key)
        assert in_words("ip+shop.limits.plan") == "each combination of address and value of shop.limits.plan"

    def test_no_part_pretends_to_be_two(self, caller: Any, site: Any) -> None:
        site(TENANT="tenant")
        known = caller(user=User(pk=5), tenant="acme").ident("tenant+user")
        for tenant in ("acme+user:5", "acme%2Buser:5", "acme+user:5+"):
            pretender = SimpleNamespace(pk="", is_authenticated=True)
            assert caller(user=pretender, tenant=tenant).ident("tenant+user") is None
            liar = SimpleNamespace(pk="5", is_authenticated=True)
            assert caller(user=liar, tenant=tenant).ident("tenant+user") != known

    @pytest.mark.parametrize("key", ["user+", "+", "+ip", "user+user", "user+everyone", "user + ip", "ip+a..b", "ip+x"])
    def test_but_not_anything(self, key: str) -> None:
        with pytest.raises(InvalidRule) as caught:
            Rule("api", "5/min", key=key)
        assert caught.value.option == "key"


PARTS = st.text(alphabet=st.sampled_from("ab+%:25B~0\x00{}é\ud800"), min_size=1, max_size=6)


@pytest.mark.row("A15")
@given(st.lists(PARTS, min_size=2, max_size=4), st.lists(PARTS, min_size=2, max_size=4))
def test_a15_joined_parts_tell_what_they_were(one: list[str], other: list[str]) -> None:
    assert (combined("key", one) == combined("key", other)) == (one == other)


LONG = st.one_of(
    st.text(max_size=8),
    st.integers(500, 520).map(lambda length: "x" * length),
    st.sampled_from([ident_of("", "x" * 513)[1:], "~" + "0" * 64, "~"]),  # type: ignore[index]
)


@pytest.mark.row("A15")
@given(st.sampled_from(KEYS), LONG, st.sampled_from(KEYS), LONG)
def test_a15_so_does_a_kind_and_its_value(kind: str, value: str, other_kind: str, other: str) -> None:
    same = ident_of(kind, value) == ident_of(other_kind, other)
    assert same == ((value, other) == ("", "") or (kind, value) == (other_kind, other))


def organisation(caller: Any) -> str | None:
    name = caller.header("organisation")
    return f"organisation:{name}" if name else None


ORGANISATION = KeyKind(
    name="organisation",
    label="Organisation",
    words="each organisation",
    find=organisation,
    override="Organisation",
    rank=5,
    in_headers="always",
    is_audience=True,
)
ACME = RequestCaller(RequestFactory().get("/", headers={"organisation": "acme"}))
NONE = RequestCaller(RequestFactory().get("/"))


def test_callers_rules_descriptions_the_admin_and_overrides_have_a_new_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KEY_KINDS, "organisation", ORGANISATION)
    assert (ACME.ident("organisation"), NONE.ident("organisation")) == ("organisation:acme", None)
    assert NONE.ident("ip+organisation") is None and ACME.is_("organisation:acme")
    assert not ACME.is_("organisation:other") and not NONE.is_("organisation:")
    named = IdentCaller("organisation:acme")
    assert [key for key in KEY_KINDS if named.ident(key) == named.name] == ["organisation"]
    for key, words in (("organisation", "each organisation: 5"), ("ip+organisation", "each combination of address")):
        rule = Rule("api", "5/min", key=key)
        assert check_allowed(rule) is rule and describe(rule).startswith(words)
        with pytest.raises(InvalidRule, match="did you mean 'organisation'"):
            Rule("api", "5/min", key=key.replace("organisation", "organization"))
    assert ("organisation", "Organisation") in key_choices()
    assert may_see((), lambda: False, "organisation:acme")
    assert subject_kinds()[-3:] == ("tenant", "organisation", "group")
    assert Override(subject="organisation:acme", effect="block").kind == "organisation"


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
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
        lookups: list[object] = []
        read = keys.read_groups
        monkeypatch.setattr(keys, "read_groups", lambda user: (lookups.append(user), read(user))[1])
        caller = AsgiCaller({"user": await sync_to_async(editor)()})
        call = Call("chat", ("message",), caller)
        assert [(await limiter.adecide(call)).allowed for _ in range(4)] == [True, False, False, False]
        assert len(lookups) == 2, "once in vain on the loop, once in a thread"

    async def test_a_tenant_may_be_a_row_that_has_to_be_read(self, enforce: Enforce) -> None:
        class Member:
            is_authenticated = True

            @property
            def tenant(self) -> Any:
                return Group.objects.get(name="acme")

        await Group.objects.acreate(name="acme")
        enforce(api={"rate": "1/min", "key": "tenant"}, TENANT="user.tenant.name")
        caller = AsgiCaller({"user": Member()})
        answers = [(await limiter.adecide(Call("chat", ("request",), caller))).allowed for _ in range(2)]
        assert answers == [True, False]


@pytest.mark.parametrize("engine", ["cache", "file"])
@pytest.mark.parametrize("key", ["session", "session+ip"])
async def test_sessions_that_no_database_has_are_read_in_a_thread_all_the_same(
    enforce: Enforce, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, key: str
) -> None:
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    settings.SESSION_FILE_PATH = str(tmp_path)
    store = import_module(settings.SESSION_ENGINE).SessionStore
    cart = store()
    cart["cart"] = 1
    await sync_to_async(cart.save)()
    read, held_up = store.load, []

    def load(session: Any) -> Any:
        held_up.append(is_on_event_loop())
        return read(session)

    monkeypatch.setattr(store, "load", load)
    enforce(api={"rate": "1/min", "key": key, "events": ["connect"]}, other={"rate": "9/min", "key": "ip"})
    decisions = []
    for events in (("connect",), ("connect",), ("request",)):
        caller = AsgiCaller({"session": store(cart.session_key), "client": ("203.0.113.9", 1)})
        decisions.append((await limiter.adecide(Call("chat", events, caller))).allowed)
    assert decisions == [True, False, True]
    assert held_up == [False, False], "not at all where no rule asks"
