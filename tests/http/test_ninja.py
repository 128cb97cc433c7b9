"""Django Ninja's operations, in a module whose annotations are texts: Ninja looks up their names by itself."""

from __future__ import annotations

from typing import Annotated, Any

from django.core.checks import run_checks
from django.http import HttpRequest
from django.test import Client
from django.urls import path
from ninja import Header, NinjaAPI, Path, Query, Schema

from django_throttle.decorators import throttle
from tests.doors import Enforce


class Order(Schema):
    name: str
    pieces: list[Piece] = []


class Piece(Schema):
    number: int


Order.model_rebuild()
Number = Annotated[int, "of an order"]
Page = int
api = NinjaAPI(urls_namespace="quoted")


@api.post("orders/{number}", response=Order)
@throttle("api")
def order(request: HttpRequest, number: Number, order: Order, tags: Query[list[str]], x_shop: Header[str]) -> Any:
    return Order(name=f"{number} {order.name} {' '.join(tags)} {x_shop}", pieces=order.pieces)


@api.get("find/{word}")
@throttle("api", ident=lambda request, word, page: f"word:{word}")
@throttle("slow")
async def find(request: HttpRequest, word: Path[str], page: Page = 1) -> Any:
    return {"word": word, "page": page}


urlpatterns = [path("", api.urls)]


def test_quoted_types_are_what_they_name(enforce: Enforce) -> None:
    enforce(api={"rate": "1/min"})
    sent = {"name": "cake", "pieces": [{"number": "3"}]}

    def ask(**headers: str) -> Any:
        return Client().post("/orders/7?tags=a&tags=b", sent, content_type="application/json", headers=headers)

    assert ask().status_code == 422, "it has no X-Shop, so the operation is never called"
    answer = ask(**{"X-Shop": "corner"})
    assert (answer.status_code, answer.json()) == (200, {"name": "7 cake a b corner", "pieces": [{"number": 3}]})
    assert ask(**{"X-Shop": "corner"}).status_code == 429


def test_a_function_may_be_taken_twice_and_a_check_names_a_decorator_that_stands_above(settings: Any) -> None:
    def plain(request: HttpRequest) -> str:
        return "plain"

    def lost(request: HttpRequest) -> str:
        return "lost"

    twice = NinjaAPI(urls_namespace="twice")
    twice.get("/free")(plain)
    twice.get("/limited")(throttle("limited")(plain))
    throttle("lost")(twice.get("/lost")(lost))
    settings.ROOT_URLCONF = (path("twice/", twice.urls),)
    messages = [message.msg for message in run_checks(tags=["django_throttle"]) if "Ninja" in message.msg]
    assert messages == ["@throttle('lost') stands above Django Ninja's decorator at lost: it limits nothing"]
