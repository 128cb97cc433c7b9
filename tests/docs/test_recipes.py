"""The recipes of the documentation are run, and do what they say."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, Group, User
from django.http import HttpRequest
from django.test import AsyncClient, RequestFactory

from django_throttle import limiter
from django_throttle.call_facts import Facts
from django_throttle.core import Decision, Reason, Rule
from django_throttle.exceptions import InvalidRule
from django_throttle.identity import HttpWho, ScopeWho
from django_throttle.logins import UNCLEAR
from django_throttle.signals import quota_warning
from django_throttle.stores import MemoryStore
from tests.clock import FrozenClock
from tests.graphql_site import graphene_schema, schema
from tests.other_side import other_side
from tests.pages import run, shown

QUIET = {"DATABASE_RULES": False, "AGENT": False}
(QUOTAS, TOLD), (OPERATIONS, GRAPHQL, VIEWS), (*_, ACCOUNT) = map(shown, ("quotas", "graphql", "logins"))
(*PLANS, AUDIENCES), (CRM, CUSTOMER) = shown("plans"), shown("outgoing")
LOGINS = " ".join(f'a{number}: login(name: "anna", password: "{number}") {{ ok }}' for number in range(100))


@pytest.fixture
def rules(settings: Any, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts the rules of a recipe in force, counted in memory by a clock that stands still."""

    def enforce(recipe: str) -> None:
        settings.DJANGO_THROTTLE = {"RULES": run(recipe)["DJANGO_THROTTLE"]["RULES"], **QUIET}
        store = MemoryStore(clock=clock)
        monkeypatch.setattr(limiter, "get_store", lambda: store)

    return enforce


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module in which the site has its functions."""
    limits = ModuleType("shop.limits")
    vars(limits).update(run(OPERATIONS))
    for name, module in (("shop", ModuleType("shop")), ("shop.limits", limits)):
        monkeypatch.setitem(sys.modules, name, module)
    return limits


def post(body: object, user: int = 1) -> HttpRequest:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = RequestFactory().post("/graphql", text, content_type="application/json")
    request.user = SimpleNamespace(pk=user, is_authenticated=True)  # type: ignore[assignment]
    return request


def decide(request: HttpRequest, scope: str = "graphql", cost: int = 1) -> Decision:
    return limiter.decide(Facts(scope, ("request",), HttpWho(request), cost, method=request.method or ""))


class TestQuotas:
    @pytest.fixture
    def notified(self) -> Iterator[list[tuple[str, str]]]:
        found: list[tuple[str, str]] = []
        names = run(TOLD, notify=lambda *told: found.append(told))
        yield found
        quota_warning.disconnect(names["tell"])

    def test_told_at_80_and_100_and_restricted_at_two_and_a_half(
        self, rules: Any, clock: FrozenClock, notified: list[tuple[str, str]]
    ) -> None:
        rules(QUOTAS)
        request, passed = post({}), 0
        for hour in range(190):
            clock.to(hour * 3600)
            passed += sum(decide(request, cost=200).allowed for _ in range(6))
        assert passed * 200 == 180_000
        assert notified == [
            ("user:1", "80% of 72,000 calls used"),
            ("user:1", "100% of 72,000 calls used"),
        ]


@pytest.mark.row("A27")
class TestGraphQL:
    def test_a_hundred_in_a_batch_cost_a_hundred_times_one(self, rules: Any, shop: Any) -> None:
        rules(GRAPHQL)
        batch = [{"query": "query { me }"}] * 100
        assert decide(post(batch[:1])).remaining == 999
        assert decide(post(batch)).remaining == 899

    @pytest.mark.parametrize(
        "spread", [f"mutation {{ {LOGINS} }}", f"fragment f on Mutation {{ {LOGINS} }} mutation {{ ...f }}"]
    )
    def test_a_hundred_aliased_logins_cost_a_hundred_times_one(self, rules: Any, shop: Any, spread: str) -> None:
        rules(GRAPHQL)
        assert shop.operations(post({"query": spread})) == 1150
        decision = decide(post({"query": spread}))
        assert not decision.allowed and decision.retry_after is None
        assert decision.outcomes[0].reason is Reason.TOO_COSTLY
        assert decide(post({"query": "{ me }"})).remaining == 999, "nothing was charged for it"

    @pytest.mark.parametrize(("query", "cost"), [("{ me { name } }", 3), ("{ users(first: 10) { name } }", 16)])
    def test_the_examples(self, shop: Any, query: str, cost: int) -> None:
        assert shop.operations(post({"query": query})) == cost

    @pytest.mark.parametrize(
        "body",
        [b"", b"{", b"\xff", b"null", b"7", b'"login"', b"[]", b"[[]]", b'{"query": 5}', b'{"q": "login"}'],
        ids=lambda body: repr(body[:12]),
    )
    def test_what_is_no_query_costs_one(self, rules: Any, shop: Any, body: bytes) -> None:
        rules(GRAPHQL)
        assert decide(post(body)).remaining == 999

    def test_what_cannot_be_read_is_refused(self, rules: Any, shop: Any) -> None:
        rules(GRAPHQL)
        assert not decide(post(b"[" * 100_000)).allowed

    def test_the_views_are_limited(self, rules: Any, shop: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        rules(GRAPHQL)
        schemas = SimpleNamespace(graphene=graphene_schema, strawberry=schema)
        monkeypatch.setattr(sys.modules["shop"], "schemas", schemas, raising=False)
        monkeypatch.setattr("django_throttle.stores._store", limiter.get_store())
        settings.MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]
        urls = ModuleType("shop.urls")
        vars(urls).update(run(VIEWS))
        monkeypatch.setitem(sys.modules, "shop.urls", urls)
        settings.ROOT_URLCONF = "shop.urls"
        for path in ("/graphql", "/data"):
            left = [
                async_to_sync(AsyncClient().post)(path, {"query": "{ me { name } }"}, content_type="application/json")
                for _ in range(2)
            ]
            assert [answer.status_code for answer in left] == [200, 200]
        assert "r=988" in left[1]["RateLimit"]


@pytest.mark.django_db
def test_a_login_by_name_or_address_is_about_one_account() -> None:
    account = run(ACCOUNT)["account"]
    anna = User.objects.create_user("Anna", email="Anna@example.org")

    def said(**form: Any) -> Any:
        return account(RequestFactory().post("/", form))

    assert said(login="anna") == said(login="ANNA@example.org ") == f"account {anna.pk}"
    assert said(login="Otto") == "name otto"
    lea = User.objects.create_user("Léa", email="lea@example.org")
    assert said(login="Léa") == said(login="lea@example.org") == f"account {lea.pk}"
    assert said(other="anna") == said(login=["anna", "otto"]) == f"name {UNCLEAR}"
    assert account(RequestFactory().get("/")) is None


def test_rules_for_some_are_rules() -> None:
    found = [Rule.from_options(name, options) for name, options in run(AUDIENCES)["DJANGO_THROTTLE"]["RULES"].items()]
    assert [rule.audience for rule in found] == [("anonymous",), ("authenticated",), ("group:partners", "staff")]


async def test_calls_to_others_wait_and_heed(settings: Any) -> None:
    settings.DJANGO_THROTTLE = {"RULES": run(CRM)["DJANGO_THROTTLE"]["RULES"], **QUIET, "STORE": "memory"}
    names = run(CUSTOMER)
    with other_side() as other:
        names["crm"].base_url = other.url
        other.body = b'{"name": "Anna"}'
        start = time.monotonic()
        assert [await names["customer"](1) for _ in range(3)] == [{"name": "Anna"}] * 3
        assert not other.leads(start, start + 0.1, start + 0.2)
        other.answers = [(503, {"Retry-After": "60"})]
        assert [await names["customer"](1) for _ in range(2)] == [None, None]
        assert len(other.arrivals) == 4
        await names["crm"].aclose()


class TestPlans:
    RULE, FUNCTION, BY_FUNCTION = PLANS

    @pytest.mark.django_db
    def test_premium_users_get_ten_times(self, rules: Any, settings: Any) -> None:
        rules(self.RULE)
        settings.DJANGO_THROTTLE |= {"TENANT": run(self.RULE)["DJANGO_THROTTLE"]["TENANT"]}
        anna, bob = (User.objects.create(username=name) for name in ("anna", "bob"))
        anna.groups.add(Group.objects.create(name="premium"))
        bob.tenant_id = "acme"
        limits = {}
        for who in (AnonymousUser(), anna, bob):
            request = RequestFactory().get("/")
            request.user = who
            limits[str(who)] = limiter.decide(Facts("api", ("request",), HttpWho(request))).limit
        assert limits == {"AnonymousUser": 100, "anna": 1000, "bob": 5000}

    def test_a_function_names_the_plan(self, rules: Any, shop: Any) -> None:
        vars(sys.modules["shop.limits"]).update(run(self.FUNCTION))
        rules(self.BY_FUNCTION)
        for plan, limit, slots in (("free", 100, 3), ("pro", 1000, 3), ("team", 5000, 50)):
            user = SimpleNamespace(plan=plan, pk=1, is_authenticated=True)
            for event, found in (("request", limit), ("connection", slots)):
                facts = Facts("api", (event,), ScopeWho({"user": user, "client": ("192.0.2.1", 1)}))
                assert limiter.decide(facts).limit == found

    def test_who_is_among_others_stands_before_them(self) -> None:
        Rule("api", "1/min", plans={"staff": "3/min", "authenticated": "2/min"})
        with pytest.raises(InvalidRule, match="must stand before"):
            Rule("api", "1/min", plans={"authenticated": "2/min", "staff": "3/min"})

    @pytest.mark.parametrize(
        ("options", "left", "later"),
        [
            ({}, 96, 96),
            ({"algorithm": "token_bucket"}, 60, 100),
            ({"algorithm": "token_bucket", "refill": "interval"}, 6, 100),
        ],
    )
    def test_what_was_used_is_kept(self, clock: FrozenClock, options: dict[str, Any], left: int, later: int) -> None:
        """After 4 calls of 10, at once and when they have been refilled."""
        rule = Rule("api", "10/min", plans={"staff": "100/min"}, **options)
        (_, planned), *_ = rule.by_plan
        store = MemoryStore(clock)
        for _ in range(4):
            limiter.Limiter([rule], store).acquire("user:1")
        of_plan = limiter.Limiter([planned], store)
        assert of_plan.peek("user:1").remaining == left
        clock.tick(60)
        assert of_plan.peek("user:1").remaining == later

    def test_what_is_open_stays_open_under_a_smaller_plan(self, clock: FrozenClock) -> None:
        rule = Rule("open", limit=3, algorithm="concurrency", plans={"staff": 50})
        (_, planned), *_ = rule.by_plan
        store = MemoryStore(clock)
        leases = [limiter.Limiter([planned], store).acquire("user:1").lease for _ in range(5)]
        assert not limiter.Limiter([rule], store).acquire("user:1").allowed
        for lease in leases[:3]:
            limiter.Limiter([rule], store).release(lease)
        assert limiter.Limiter([rule], store).acquire("user:1").allowed
