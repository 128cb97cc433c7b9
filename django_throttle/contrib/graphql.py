"""Costs of GraphQL requests, by the fields, depth and list arguments of their operations.

The request is parsed by graphql-core, as in graphene and strawberry. The cost may be too high (for a field that a
directive skips), but never too low: if a server could read a request in two ways, the higher cost counts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from django.http import HttpRequest, QueryDict
from django.http.request import RawPostDataException

from django_throttle.core.rate import UNAFFORDABLE_COST
from django_throttle.exceptions import needs_extra
from django_throttle.http.request_state import django_request
from django_throttle.identity.request_body import KeptBody, is_request_error

with needs_extra("graphql", "graphql"):
    from graphql import GraphQLSyntaxError
    from graphql.language import (
        FieldNode,
        FloatValueNode,
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

FORM_TYPES: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
PARAMETERS: Final = ("query", "variables", "operationName")
Parameters = Mapping[str, object]
#: Number of values in the JSON of a request.
MAX_VALUES: Final = 50_000
#: Number of fields, values and operations that are visited.
MAX_STEPS: Final = 100_000
TYPENAME: Final = "__typename"
INTROSPECTION: Final = ("__schema", "__type")


class _RequestTooLarge(Exception):
    """The request has too many values, fields or characters."""


@dataclass(frozen=True, slots=True)
class _CostFunction:
    """Function that returns the cost of a request, with its options. See graphql_cost."""

    depth_factor: float
    field_costs: Mapping[str, float]
    list_arguments: frozenset[str]
    introspection: float
    max_length: int
    __qualname__ = "graphql_cost"

    def __call__(self, request: HttpRequest) -> int:
        reading = _RequestReading(self)
        try:
            with KeptBody([request]):
                total = reading.max_cost(django_request(request))
        except (_RequestTooLarge, RecursionError):
            return UNAFFORDABLE_COST
        except RawPostDataException:
            return 1  # the stream was read before
        except Exception as error:
            if not is_request_error(error):
                raise
            return 1  # the view meets the same error
        return ceil(max(1, min(total, UNAFFORDABLE_COST)))


def graphql_cost(
    *,
    depth_factor: float = 1.5,
    field_costs: Mapping[str, float] | None = None,
    list_arguments: Collection[str] = ("first", "last", "limit"),
    introspection: float = 10,
    max_length: int = 15_000,
) -> _CostFunction:
    """Return a function of the request for ``throttle_cost``, ``@throttle`` and a rule's ``cost``.

    A field costs 1, or the number in ``field_costs`` for its name, plus ``depth_factor`` times the cost of the fields
    below it. The largest of its ``list_arguments``, also in an input object or a variable, multiplies the cost below.
    ``__schema`` and ``__type`` cost ``introspection``, with all fields below them. An operation costs at least 1, and a
    query that cannot be parsed costs 1. More than ``max_length`` characters of queries in a request cost more than any
    limit.

    Raise ValueError for invalid options.
    """
    costs = dict(field_costs or {})
    if not (depth_factor > 0 and introspection >= 0 and max_length > 0 and all(cost >= 0 for cost in costs.values())):
        raise ValueError("costs of fields are 0 or more; depth_factor and max_length are more than 0")
    if isinstance(list_arguments, str):
        raise ValueError("list_arguments are several names, such as (first, last)")
    return _CostFunction(depth_factor, {TYPENAME: 0, **costs}, frozenset(list_arguments), introspection, max_length)


operation_cost: Final = graphql_cost()


def _form_parameters(form: QueryDict) -> list[Parameters]:
    """Return the parameters of a form by the first values, and by the last values if these differ."""
    lists = {name: values for name in PARAMETERS if (values := [text for text in form.getlist(name) if text])}
    first, last = ({name: values[place] for name, values in lists.items()} for place in (0, -1))
    return [first, last] if first != last else [last] if last else []


def _readings(entry: Parameters, url_parameters: list[Parameters]) -> Iterator[Parameters]:
    """Yield each reading of an operation in the body and the query string: either alone, or merged in both orders.

    Graphene prefers each parameter of the query string. Strawberry reads only one of both.
    """
    yield entry
    for parameters in url_parameters:
        yield parameters
        yield {**entry, **parameters}
        yield {**parameters, **{name: value for name, value in entry.items() if value}}


def _number_of_values(text: str, max_values: int) -> int:
    """Return an upper bound of the number of values in a JSON text. It is exact if it is at most ``max_values``."""
    number = sum(map(text.count, "[{,")) + 1
    if number > max_values:  # some of these characters may be inside strings
        texts = text.replace("\\\\", "").replace('\\"', "")  # without escapes, each quote begins or ends a string
        if texts.count('"') <= 4 * max_values:  # a value has at most a name and a string
            number = sum(map("".join(texts.split('"')[::2]).count, "[{,")) + 1
    return number


@dataclass(slots=True)
class _RequestReading:
    """Reading of one request, with the counts that limit it."""

    options: _CostFunction
    length: int = 0
    values: int = 0
    steps: int = 0

    def max_cost(self, request: HttpRequest) -> float:
        """Return the cost of the request's operations, in the reading with the highest cost."""
        url_parameters = _form_parameters(request.GET)
        bodies = (body if isinstance(body, list) else [body] for body in self._bodies(request))
        return max([sum([self._max_cost_of_entry(entry, url_parameters) for entry in entries]) for entries in bodies])

    def _bodies(self, request: HttpRequest) -> Iterator[object]:
        """Yield an operation, or a list of them, for each reading of the body."""
        if request.content_type in FORM_TYPES:
            yield from _form_parameters(request.POST) or [{}]
            for text in request.POST.getlist("operations"):  # a form with files; some servers ignore it
                yield self._json(text)
            return
        body = request.body
        if request.content_type == "application/graphql":
            yield {"query": body.decode(errors="replace")}
        yield self._json(body) if body else {}

    def _json(self, data: str | bytes) -> object:
        """Parse JSON, and return {} for invalid JSON. Raise _RequestTooLarge before parsing too many values."""
        try:
            text = data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass")
            self.values += _number_of_values(text, MAX_VALUES - self.values)
            if self.values > MAX_VALUES:
                raise _RequestTooLarge
            return json.loads(text)
        except ValueError:
            return {}

    def step(self) -> None:
        """Count a visited field, value or operation. Raise _RequestTooLarge for too many."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise _RequestTooLarge

    def _max_cost_of_entry(self, entry: object, url_parameters: list[Parameters]) -> float:
        self.step()
        if not isinstance(entry, Mapping):
            entry = {}
        if not (entry or url_parameters):
            return 1
        texts: set[str] = set()  # each text counts once for the length, in all readings
        return max([1.0, *[self._cost(parameters, texts) for parameters in _readings(entry, url_parameters)]])

    def _cost(self, parameters: Parameters, texts: set[str]) -> float:
        query, variables, name = (parameters.get(key) for key in PARAMETERS)
        if not isinstance(query, str):
            return 1  # a persisted operation, of which only the name is known
        self._note(query, texts)
        if isinstance(variables, str):
            self._note(variables, texts)
            variables = self._json(variables)
        try:
            # parse() would turn a RecursionError into a syntax error, but the view may be able to parse the query.
            document = Parser(query, no_location=True).parse_document()
        except GraphQLSyntaxError:
            return 1  # the view refuses the query
        operations = [node for node in document.definitions if isinstance(node, OperationDefinitionNode)]
        # If no operation has the name, or there is no name, the server refuses the request or chooses an operation.
        named = [node for node in operations if name and node.name and node.name.value == name] or operations
        fragments = {node.name.value: node for node in document.definitions if isinstance(node, FragmentDefinitionNode)}
        variable_values = variables if isinstance(variables, dict) else {}
        return max([_Operation(self, node, fragments, variable_values).cost() for node in named], default=1)

    def _note(self, text: str, texts: set[str]) -> None:
        if text not in texts:
            texts.add(text)
            self.length += len(text)
        if self.length > self.options.max_length:
            raise _RequestTooLarge


@dataclass(slots=True)
class _Operation:
    """Operation of a request. Each fragment and each variable is visited once, even if it is used often."""

    reading: _RequestReading
    node: OperationDefinitionNode
    fragments: Mapping[str, FragmentDefinitionNode]
    variables: Mapping[str, object]
    _fragment_costs: dict[str, float] = field(default_factory=dict)
    _sizes: dict[tuple[bool, str], float] = field(default_factory=dict)
    _defaults: dict[str, object] = field(init=False)

    def __post_init__(self) -> None:
        definitions = self.node.variable_definitions or ()
        self._defaults = {node.variable.name.value: node.default_value for node in definitions}

    def cost(self) -> float:
        return self._cost_of_selection(self.node.selection_set)

    def _cost_of_selection(self, selection_set: SelectionSetNode | None) -> float:
        total = 0.0
        for node in selection_set.selections if selection_set else ():
            self.reading.step()
            if isinstance(node, FieldNode):
                total += self._cost_of_field(node)
            elif isinstance(node, FragmentSpreadNode):
                total += self._cost_of_fragment(node.name.value)
            elif isinstance(node, InlineFragmentNode):
                total += self._cost_of_selection(node.selection_set)
        return total

    def _cost_of_field(self, node: FieldNode) -> float:
        name = node.name.value
        if name in INTROSPECTION:
            return self.reading.options.introspection
        sizes = [
            size for argument in node.arguments or () for size in self._list_sizes(argument.name.value, argument.value)
        ]
        below = self._cost_of_selection(node.selection_set)
        options = self.reading.options
        return options.field_costs.get(name, 1) + max([1, *sizes]) * options.depth_factor * below

    def _cost_of_fragment(self, name: str) -> float:
        if name not in self._fragment_costs:
            self._fragment_costs[name] = 0  # ends a cycle, which the server refuses
            if name in self.fragments:
                self._fragment_costs[name] = self._cost_of_selection(self.fragments[name].selection_set)
        return self._fragment_costs[name]

    def _list_sizes(self, name: str, value: object) -> Iterator[float]:
        """Yield the list sizes in an argument, at any depth, of the query's own values or of JSON."""
        pending = [(name, value)]
        while pending:
            name, value = pending.pop()
            self.reading.step()
            is_size = name in self.reading.options.list_arguments
            match value:
                case VariableNode():
                    yield self._of_variable(is_size, name, value.name.value)
                case ObjectValueNode():
                    pending += [(child.name.value, child.value) for child in value.fields]
                case dict():
                    pending += value.items()
                case ListValueNode():
                    pending += [(name, child) for child in value.values]
                case list():
                    pending += [(name, child) for child in value]
                case IntValueNode() | FloatValueNode() if is_size:
                    yield min(float(value.value), UNAFFORDABLE_COST)
                case int() | float() if is_size and value >= 1:
                    yield min(value, UNAFFORDABLE_COST)

    def _of_variable(self, is_size: bool, name: str, variable: str) -> float:
        if (is_size, variable) not in self._sizes:
            value = self.variables.get(variable, self._defaults.get(variable))
            self._sizes[is_size, variable] = max(self._list_sizes(name, value), default=1)
        return self._sizes[is_size, variable]
