"""Real GraphQL views of graphene and strawberry, sync and async, for the tests of what a query costs."""

from __future__ import annotations

from typing import Any

import graphene
import strawberry
from django.urls import path
from graphene_django.views import GraphQLView as GrapheneView
from strawberry.django.views import AsyncGraphQLView, GraphQLView
from strawberry.schema.config import StrawberryConfig

from django_throttle.decorators import throttle
from django_throttle.graphql import operation_cost

served: list[str] = []  # the names that were asked for


class Person(graphene.ObjectType):
    name = graphene.String()
    friends = graphene.List(lambda: Person, first=graphene.Int())

    def resolve_name(self, _: Any) -> str:
        served.append("name")
        return "Anna"

    def resolve_friends(self, _: Any, first: int = 1) -> list[Person]:
        return [Person()] * first


class Query(graphene.ObjectType):
    me = graphene.Field(Person)

    def resolve_me(self, _: Any) -> Person:
        return Person()


@strawberry.type
class Somebody:
    @strawberry.field
    def name(self) -> str:
        served.append("name")
        return "Anna"

    @strawberry.field
    def friends(self, first: int = 1) -> list[Somebody]:
        return [Somebody()] * first


@strawberry.type
class Root:
    @strawberry.field
    def me(self) -> Somebody:
        return Somebody()


graphene_schema = graphene.Schema(query=Query)
schema = strawberry.Schema(query=Root, config=StrawberryConfig(batching_config={"max_operations": 10}))


urlpatterns = [
    path("graphene", GrapheneView.as_view(schema=graphene_schema), name="graphene"),
    path("graphene-batch", GrapheneView.as_view(schema=graphene_schema, batch=True), name="graphene-batch"),
    path("strawberry", GraphQLView.as_view(schema=schema), name="strawberry"),
    path("strawberry-async", AsyncGraphQLView.as_view(schema=schema), name="strawberry-async"),
    path("decorated", throttle("decorated", cost=operation_cost)(GrapheneView.as_view(schema=graphene_schema))),
    path("decorated-async", throttle("decorated", cost=operation_cost)(AsyncGraphQLView.as_view(schema=schema))),
]
