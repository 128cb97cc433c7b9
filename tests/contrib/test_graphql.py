"""What a GraphQL request costs: by its own parser, under hostile input too, and before real views."""

from __future__ import annotations

import json
from functools import partial
from typing import Any
from urllib.parse import urlencode

import graphene
import pytest
import strawberry
from django.http import HttpRequest
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from graphene_django.views import GraphQLView as GrapheneView
from graphql.language.parser import Parser
from strawberry.django.views import AsyncGraphQLView, GraphQLView

from django_throttle.contrib.graphql import graphql_cost, operation_cost
from django_throttle.core.rate import UNAFFORDABLE_COST
from tests.doors import BOTH, Enforce

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


def post(body: Any, content_type: str = JSON, query: str = "") -> HttpRequest:
    text = body if isinstance(body, (bytes, str)) else json.dumps(body)
    return RequestFactory().post(f"/graphql?{query}", text, content_type=content_type)


def cost(query: Any, tuned: Any = operation_cost, **more: Any) -> int:
    found: int = tuned(post({"query": query, **more}))
    return found


flat = graphql_cost(depth_factor=1)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("{ a: me b: me c: me }", 3), ("{ me { __typename name } }", 2),
        ("{ me { ... on User { name age } ... { name } } }", 4),
        ("query { a: me { ...f } b: me { ...f } } fragment f on User { name age }", 6),
        ("{ users(first: 2, last: 10) { name } }", 11), ("{ users(limit: 10, offset: 1000) { name } }", 11),
        ("{ users(page: {limit: 10, offset: 99}) { name } }", 11),
        ("{ users(pages: [{limit: 3}, {limit: 10}]) { name } }", 11),
        ("{ users(first: 10) { posts(first: 5) { title } } }", 61), ("{ users(first: 0) { name } }", 2),
        ('{ users(first: "10") { name } }', 2), ("{ users(page: 10) { name } }", 2),
        ("{ users(first: $n) { name } }", 2), ("query($n: Int = 7) { users(first: $n) { name } }", 8),
        ("mutation { login(name: 1) { ok } }", 2), ("{ me @skip(if: true) { name } }", 2),
        ('{ __type(name: "User") { name } me }', 11), ("fragment f on User { name }", 1),
        ("{ me { ...unknown } }", 1), ("type Query { me: User }", 1), ("{ me { name }", 1), ("", 1), (None, 1),
        (["{ me }"], 1), ("{ ...a } fragment a on Q { x ...b } fragment b on Q { y ...a }", 2),
        ("{ ...a } fragment a on Q { ...a ...a }", 1), (f"{{ a(first: {'9' * 5_000}) {{ b }} }}", UNAFFORDABLE_COST),
        (f"{{ a(first: {'9' * 400}) {{ __typename }} }}", 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("empty", [[], None], ids=["3.2", "3.3"])
def test_without_depth(query: Any, expected: int, empty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """graphql-core 3.3 has None where 3.2, the newest that graphene takes, has an empty list."""
    read = Parser.optional_many
    monkeypatch.setattr(Parser, "optional_many", lambda *args: read(*args) or empty)
    assert cost(query, flat) == expected


def test_depth_and_prices_of_fields() -> None:
    """Five fields one below the other cost 1 + 1.5 + 2.25 + 3.375 + 5.0625."""
    assert (cost("{ a { b { c { d { e } } } } }"), cost("{ a b c d e }")) == (14, 5)
    tuned = graphql_cost(depth_factor=2, field_costs={"login": 10, "name": 0}, list_arguments=["size"], introspection=3)
    assert cost("mutation { a: login { name ok } b: login { ok } }", tuned) == 24
    assert cost("{ users(size: 4, first: 100) { age } __schema { types { name } } }", tuned) == 12


@pytest.mark.parametrize(
    "options",
    [
        *({"depth_factor": 0}, {"depth_factor": float("nan")}, {"field_costs": {"a": -1}}),
        *({"list_arguments": "first"}, {"introspection": -1}, {"max_length": 0}),
    ],
)
def test_options_without_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="are"):
        graphql_cost(**options)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        *(({"n": 20}, 21), ('{"n": 20}', 21), ({}, 8), (None, 8), ("gibberish", 8), ([1], 8)),
        *(({"n": value}, 2) for value in (None, 0, True, "many", float("nan"))),
        *(({"n": value}, UNAFFORDABLE_COST) for value in (10**400, 1e300)),
    ],
)
def test_variables(variables: Any, expected: int) -> None:
    assert cost("query($n: Int = 7) { users(first: $n) { name } }", flat, variables=variables) == expected


def test_variables_in_an_input_object() -> None:
    query = "query($page: Page, $n: Int) { a: users(page: $page) { name } b: users(page: {limit: $n}) { name } }"
    assert cost(query, flat, variables={"page": {"limit": 10}, "n": 20}) == 32


@pytest.mark.parametrize(
    ("name", "expected"), [("Cheap", 1), ("Dear", 4), (None, 4), ("", 4), ("Other", 4), (5, 4), ("null", 4)]
)
def test_the_named_operation_counts_or_the_dearest(name: Any, expected: int) -> None:
    assert cost("query Cheap { me } query Dear { a b c d }", operationName=name) == expected


def test_a_batch_is_the_sum() -> None:
    batch = [{"query": "{ a b }"}, {"query": "{ a b c }"}, {"id": "persisted"}, 5, None]
    assert operation_cost(post(batch)) == 8
    assert operation_cost(post([])) == 1


class TestReadings:
    """A server may read a request in one way or another: the dearer counts."""

    DEAR, CHEAP = "{ a b c d }", "{ a }"
    DEFAULT = "query($n: Int = 9) { a(first: $n) { b } }"  # costs 10 without a variable

    @pytest.mark.parametrize("beside", ["{}", "[]", "5", "{", '{"query": "{ a }"}', '[{"query": "{ a }"}]'])
    @pytest.mark.parametrize("name", ["query", "operations"])
    @pytest.mark.parametrize("kind", ["form", "multipart"])
    def test_a_form_and_its_operations(self, beside: str, name: str, kind: str) -> None:
        dear = {"query": self.DEAR, "operations": json.dumps({"query": self.DEAR})}[name]
        sent = {"query": self.CHEAP, "operations": beside, name: dear}
        request = RequestFactory().post("/graphql", sent) if kind == "multipart" else post(urlencode(sent), FORM)
        assert operation_cost(request) == 4

    @pytest.mark.parametrize("order", [1, -1])
    def test_a_parameter_that_is_there_twice(self, order: int) -> None:
        sent = urlencode([("query", self.DEAR), ("query", self.CHEAP)][::order])
        assert operation_cost(RequestFactory().get(f"/graphql?{sent}")) == operation_cost(post(sent, FORM)) == 4

    @pytest.mark.parametrize(
        ("body", "in_url", "expected"),
        [
            ({"variables": {"n": 1}}, {"query": DEFAULT}, 10),  # a GET, of which strawberry reads no body
            ({"query": DEFAULT}, {"variables": '{"n": 1}'}, 10),  # a POST, of which it reads no query string
            ({"query": DEFAULT, "variables": {"n": 1}}, {"variables": '{"n": 5}'}, 6),
            ({"query": DEFAULT, "variables": {"n": 5}}, {"variables": '{"n": 1}'}, 6),
            ({"query": DEAR}, {"query": "{ a }"}, 4),
            ({"query": "{ a }"}, {"query": DEAR}, 4),
            ({"query": "query A { a } query B { a b }", "operationName": "A"}, {"operationName": "B"}, 2),
        ],
    )
    @pytest.mark.parametrize("method", ["GET", "POST"])
    def test_a_body_and_a_query_string(self, method: str, body: Any, in_url: dict[str, str], expected: int) -> None:
        sent = json.dumps(body)
        request = RequestFactory().generic(method, f"/graphql?{urlencode(in_url)}", sent, content_type=JSON)
        assert flat(request) == expected


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (RequestFactory().get("/", {"query": "query($n: Int) { a(first: $n) { b } }", "variables": '{"n": 4}'}), 5),
        (RequestFactory().get("/graphql"), 1), (post(urlencode({"query": "{ a b }"}), FORM), 2),
        (RequestFactory().post("/graphql", {"query": "{ a b }"}), 2),
        (RequestFactory().post("/graphql", {"operations": '{"query": "mutation { a b c }"}', "map": "{}"}), 3),
        (post({"query": "{ a b }"}, "application/graphql"), 2), (post("{ a b }", "application/graphql"), 2),
        (post(b"gibberish", "multipart/form-data; boundary=x"), 1),
        *((post(body), 1) for body in (b"", b"null", b"5", b'"text"', b"{", b"\xff\xfe\x00", b"[" * 100, b"{}")),
    ],
    ids=repr,
)  # fmt: skip
def test_where_a_query_stands(request_: HttpRequest, expected: int) -> None:
    assert flat(request_) == expected


def test_an_unreadable_body_costs_1(settings: Any) -> None:
    read = post({"query": "{ a b }"})
    read.read()
    assert operation_cost(read) == 1
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    assert operation_cost(post({"query": "{ a b c d e f }"})) == 1


class TestHostile:
    def test_fragments_that_double(self) -> None:
        parts = " ".join(f"fragment f{n} on Q {{ ...f{n + 1} ...f{n + 1} }}" for n in range(200))
        assert cost(f"{{ ...f0 }} {parts} fragment f200 on Q {{ x }}") == UNAFFORDABLE_COST

    @pytest.mark.parametrize("levels", [20, 200, 7000])
    def test_depth(self, levels: int) -> None:
        assert 3000 < cost("{a" * levels + "}" * levels) <= UNAFFORDABLE_COST

    @pytest.mark.parametrize("open_", ["[", '{"a":'])
    def test_depth_of_json(self, open_: str) -> None:
        assert operation_cost(post(f'{{"query": "{{ a }}", "variables": {open_ * 100_000}')) in (1, UNAFFORDABLE_COST)

    def test_more_text_than_is_read(self) -> None:
        assert cost("{" + "a " * 7_400 + "}") == 7_400
        assert cost("{" + "a " * 1_000_000 + "}") == UNAFFORDABLE_COST
        assert operation_cost(post([{"query": "{ a }" + " " * 5_000}] * 4)) == UNAFFORDABLE_COST
        assert operation_cost(post([{}] * 20_000)) == 20_000
        long = {"query": "{" + "a " * 4_000 + "}"}
        assert operation_cost(post(long, query="operationName=x&variables={}")) == 4_000

    def test_a_large_variable_used_often(self) -> None:
        query = f"query($v: V) {{ {' '.join(f'a{n}: u(v: $v) {{ x }}' for n in range(500))} }}"
        assert cost(query, variables={"v": [{"first": 3}] * 10_000}) == 500 * 5.5


class Person(graphene.ObjectType):
    name = graphene.String(default_value="Anna")
    friends = graphene.List(lambda: Person, first=graphene.Int())

    def resolve_friends(self, _: Any, first: int = 1) -> list[Person]:
        return [Person()] * first


class Query(graphene.ObjectType):
    me = graphene.Field(Person, default_value=Person())


@strawberry.type
class Somebody:
    name: str = "Anna"

    @strawberry.field
    def friends(self, first: int = 1) -> list[Somebody]:
        return [Somebody()] * first


@strawberry.type
class Root:
    @strawberry.field
    def me(self) -> Somebody:
        return Somebody()


schema = strawberry.Schema(query=Root)
urlpatterns = [
    path("graphene", GrapheneView.as_view(schema=graphene.Schema(query=Query))),
    path("strawberry", GraphQLView.as_view(schema=schema)),
    path("strawberry-async", AsyncGraphQLView.as_view(schema=schema)),
]

ME = "{ me { name } }"
FRIENDS = "{ me { friends(first: 10) { name } } }"  # 1 + 1.5 × (1 + 10 × 1.5)


@BOTH
@pytest.mark.urls(__name__)
class TestViews:
    @pytest.fixture(autouse=True)
    def _site(self, settings: Any, enforce: Enforce) -> None:
        settings.MIDDLEWARE = ["django_throttle.middleware.ThrottleMiddleware"]
        priced = {"rate": "60/min", "key": "everyone", "algorithm": "fixed_window"}
        enforce(priced={**priced, "cost": "django_throttle.contrib.graphql.operation_cost"})

    @pytest.mark.parametrize("path", ["graphene", "strawberry"])
    def test_behind_the_middleware(self, path: str) -> None:
        client = Client()
        answer = client.post(f"/{path}", {"query": ME}, content_type=JSON)
        assert answer.json()["data"] == {"me": {"name": "Anna"}} and "r=57" in answer["RateLimit"]
        answer = client.post(f"/{path}", {"query": FRIENDS}, content_type=JSON)
        assert len(answer.json()["data"]["me"]["friends"]) == 10 and "r=32" in answer["RateLimit"]
        assert "r=29" in client.get(f"/{path}", {"query": ME})["RateLimit"]
        assert "r=28" in client.post(f"/{path}", {"query": "{ nonsense"}, content_type=JSON)["RateLimit"]
        two = {"query": f"query Small {ME} query Large {FRIENDS}", "operationName": "Large"}
        assert "r=3" in client.post(f"/{path}", two, content_type=JSON)["RateLimit"]
        refused = client.post(f"/{path}", [{"query": ME}, {"query": FRIENDS}], content_type=JSON)
        assert refused.status_code == 429 and int(refused["Retry-After"]) >= 1

    async def test_an_asynchronous_view(self) -> None:
        ask = partial(AsyncClient().post, "/strawberry-async", {"query": FRIENDS}, content_type=JSON)
        first, second, third = [await ask() for _ in range(3)]
        assert len(first.json()["data"]["me"]["friends"]) == 10 and "r=35" in first["RateLimit"]
        assert (second.status_code, third.status_code) == (200, 429)
