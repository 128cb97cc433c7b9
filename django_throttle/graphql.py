"""The cost of a GraphQL request: of its operations, by their fields, depth and list arguments.

Read by graphql-core's parser, on which graphene and strawberry stand too. The cost may be too high (a field that a
directive leaves out), never too low: where a server could read a request in two ways, the dearer one counts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, QueryDict
from django.http.multipartparser import MultiPartParserError
from django.http.request import RawPostDataException

from django_throttle.core.rate import TOO_COSTLY
from django_throttle.exceptions import needs_extra
from django_throttle.http.request_state import django_request

with needs_extra("graphql", "graphql"):
    from graphql import GraphQLSyntaxError
    from graphql.language import (
        FieldNode,
        FragmentDefinitionNode,
        FragmentSpreadNode,
        InlineFragmentNode,
        IntValueNode,
        ListValueNode,
        ObjectValueNode,
        OperationDefinitionNode,
        SelectionSetNode,
        VariableNode,
    )
    from graphql.language.parser import Parser

__all__ = ["graphql_cost", "operation_cost"]

FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
PARAMETERS: Final = ("query", "variables", "operationName")
TYPENAME: Final = "__typename"
INTROSPECTION: Final = ("__schema", "__type")


class _TooLarge(Exception):
    """There is more to read than a request may have."""


@dataclass(frozen=True, slots=True)
class _Tuning:
    """Answers what a request costs; see graphql_cost."""

    depth_factor: float
    field_costs: Mapping[str, float]
    list_arguments: frozenset[str]
    introspection: float
    max_length: int
    __qualname__ = "graphql_cost"

    def __call__(self, request: Any) -> int:
        reading = _Reading(self)
        try:
            total = sum(map(reading.dearest, _read(django_request(request))))
        except (_TooLarge, RecursionError):
            return TOO_COSTLY
        except (RawPostDataException, RequestDataTooBig, MultiPartParserError):
            return 1  # somebody else reads the body, or nobody does
        return ceil(max(1, min(total, TOO_COSTLY)))


def graphql_cost(
    *,
    depth_factor: float = 1.5,
    field_costs: Mapping[str, float] | None = None,
    list_arguments: Collection[str] = ("first", "last", "limit"),
    introspection: float = 10,
    max_length: int = 15_000,
) -> _Tuning:
    """A function that returns the cost of a request, for ``throttle_cost``, ``@throttle`` and a rule's ``cost``.

    A field costs 1, or what ``field_costs`` says by its name, and what is asked below it ``depth_factor`` times as much
    again. The largest of its ``list_arguments``, also in an input object or a variable, multiplies what is below it.
    ``__schema`` and ``__type`` cost ``introspection`` with all below them. An operation costs 1 at least, and so does
    what cannot be parsed. More than ``max_length`` characters of queries in a request cost more than any limit.
    Raises ValueError for invalid options.
    """
    costs = dict(field_costs or {})
    if not (depth_factor > 0 and introspection >= 0 and max_length > 0 and all(cost >= 0 for cost in costs.values())):
        raise ValueError("costs of fields are 0 or more; depth_factor and max_length are more than 0")
    if isinstance(list_arguments, str):
        raise ValueError("list_arguments are several names, such as (first, last)")
    return _Tuning(depth_factor, {TYPENAME: 0, **costs}, frozenset(list_arguments), introspection, max_length)


operation_cost: Final = graphql_cost()


def _read(request: HttpRequest) -> Iterator[tuple[Any, ...]]:
    """Each operation of the request, in all the ways in which a server may read it."""
    in_url = {name: request.GET[name] for name in PARAMETERS if request.GET.get(name)}
    in_body = _body(request)
    entries = in_body if isinstance(in_body, list) else [in_body]
    for entry in entries:
        if not isinstance(entry, Mapping):
            yield ()
        elif in_url:
            yield entry, {**entry, **in_url}  # graphene prefers the query string, strawberry reads one of both
        else:
            yield (entry,)


def _body(request: HttpRequest) -> Any:
    """An operation, or a list of them; an empty one for what is neither."""
    if request.content_type in FORMS:
        form: QueryDict = request.POST
        text = form.get("operations")  # of a form with files
        return _json(text) if isinstance(text, str) else form.dict()
    body = request.body
    if request.content_type == "application/graphql":
        return {"query": body.decode(errors="replace")}
    return _json(body) if body else {}


def _json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}


@dataclass(slots=True)
class _Reading:
    """What has been read of one request."""

    tuning: _Tuning
    length: int = 0

    def dearest(self, ways: tuple[Mapping[str, Any], ...]) -> float:
        return max([1.0, *map(self._cost, ways)])

    def _cost(self, entry: Mapping[str, Any]) -> float:
        query, variables, name = (entry.get(key) for key in PARAMETERS)
        if not isinstance(query, str):
            return 1  # of a persisted operation there is but a name
        self._note(query)
        if isinstance(variables, str):
            self._note(variables)
            variables = _json(variables)
        try:
            # parse() makes a syntax error of a RecursionError, but what is too deep here may not be so for the view.
            document = Parser(query, no_location=True).parse_document()
        except GraphQLSyntaxError:
            return 1  # the view refuses it
        operations = [one for one in document.definitions if isinstance(one, OperationDefinitionNode)]
        # Where none has that name, or several could be meant, the server refuses it or knows better.
        named = [one for one in operations if name and one.name and one.name.value == name] or operations
        fragments = {one.name.value: one for one in document.definitions if isinstance(one, FragmentDefinitionNode)}
        given = variables if isinstance(variables, dict) else {}
        return max([_Operation(self.tuning, one, fragments, given).cost() for one in named], default=1)

    def _note(self, text: str) -> None:
        self.length += len(text)
        if self.length > self.tuning.max_length:
            raise _TooLarge


@dataclass(slots=True)
class _Operation:
    """One operation. Each fragment and variable is looked at once, however often it is used."""

    tuning: _Tuning
    node: OperationDefinitionNode
    fragments: Mapping[str, FragmentDefinitionNode]
    variables: Mapping[str, Any]
    _spread: dict[str, float] = field(default_factory=dict)
    _sizes: dict[tuple[bool, str], float] = field(default_factory=dict)

    def cost(self) -> float:
        return self._selected(self.node.selection_set)

    def _selected(self, chosen: SelectionSetNode | None) -> float:
        total = 0.0
        for one in chosen.selections if chosen else ():
            if isinstance(one, FieldNode):
                total += self._field(one)
            elif isinstance(one, FragmentSpreadNode):
                total += self._fragment(one.name.value)
            elif isinstance(one, InlineFragmentNode):
                total += self._selected(one.selection_set)
        return total

    def _field(self, one: FieldNode) -> float:
        name = one.name.value
        if name in INTROSPECTION:
            return self.tuning.introspection
        sizes = [size for argument in one.arguments or () for size in self._found(argument.name.value, argument.value)]
        below = self._selected(one.selection_set)
        return self.tuning.field_costs.get(name, 1) + max([1, *sizes]) * self.tuning.depth_factor * below

    def _fragment(self, name: str) -> float:
        if name not in self._spread:
            self._spread[name] = 0  # a circle, which the server refuses, ends here
            if name in self.fragments:
                self._spread[name] = self._selected(self.fragments[name].selection_set)
        return self._spread[name]

    def _found(self, name: str, value: Any) -> Iterator[float]:
        """The sizes of lists that an argument asks for, at any depth: of the query's own values, or of JSON's."""
        waiting = [(name, value)]
        while waiting:
            name, value = waiting.pop()
            is_size = name in self.tuning.list_arguments
            match value:
                case VariableNode():
                    yield self._of_variable(is_size, name, value.name.value)
                case ObjectValueNode():
                    waiting += [(one.name.value, one.value) for one in value.fields]
                case dict():
                    waiting += value.items()
                case ListValueNode():
                    waiting += [(name, one) for one in value.values]
                case list():
                    waiting += [(name, one) for one in value]
                case IntValueNode() if is_size:
                    yield min(float(value.value), TOO_COSTLY)
                case int() | float() if is_size and value >= 1:
                    yield min(value, TOO_COSTLY)

    def _of_variable(self, is_size: bool, name: str, variable: str) -> float:
        if (is_size, variable) not in self._sizes:
            defaults = {one.variable.name.value: one.default_value for one in self.node.variable_definitions or ()}
            value = self.variables.get(variable, defaults.get(variable))
            self._sizes[is_size, variable] = max(self._found(name, value), default=1)
        return self._sizes[is_size, variable]
