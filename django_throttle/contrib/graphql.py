"""The cost of a GraphQL request: of its operations, by their fields, depth and list arguments.

Read by graphql-core's parser, on which graphene and strawberry stand too. The cost may be too high (a field that a
directive leaves out), never too low: where a server could read a request in two ways, the dearer one counts.
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

FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
PARAMETERS: Final = ("query", "variables", "operationName")
Parameters = Mapping[str, object]
MAX_VALUES: Final = 50_000  # in the JSON of a request
MAX_STEPS: Final = 100_000  # fields, values and operations that are looked at
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

    def __call__(self, request: HttpRequest) -> int:
        reading, body = _Reading(self), KeptBody([request])
        try:
            with body:
                total = reading.dearest(django_request(request))
        except (_TooLarge, RecursionError):
            return UNAFFORDABLE_COST
        except RawPostDataException:
            return 1  # the stream was read before
        except Exception as error:
            if body.is_lost or not is_request_error(error):
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


def _ends(form: QueryDict) -> list[Parameters]:
    """Return the parameters of a form, by the first and by the last of several values; none without a parameter."""
    lists = {name: values for name in PARAMETERS if (values := [text for text in form.getlist(name) if text])}
    first, last = ({name: values[place] for name, values in lists.items()} for place in (0, -1))
    return [first, last] if first != last else [last] if last else []


def _ways(entry: Parameters, in_url: list[Parameters]) -> Iterator[Parameters]:
    """Yield the ways to read an operation of the body beside the query string: either alone, or one before the other.

    Graphene prefers each parameter of the query string, strawberry reads one of both.
    """
    yield entry
    for parameters in in_url:
        yield parameters
        yield {**entry, **parameters}
        yield {**parameters, **{name: value for name, value in entry.items() if value}}


def _number_of_values(text: str, most: int) -> int:
    """Return at least the number of values in a text of JSON; exactly where there are not more than ``most``."""
    number = sum(map(text.count, "[{,")) + 1
    if number > most:  # some of these may stand in texts
        texts = text.replace("\\\\", "").replace('\\"', "")  # without what is escaped, each quote begins or ends one
        if texts.count('"') <= 4 * most:  # a value has a name and a text at most
            number = sum(map("".join(texts.split('"')[::2]).count, "[{,")) + 1
    return number


@dataclass(slots=True)
class _Reading:
    """What has been read of one request."""

    tuning: _Tuning
    length: int = 0
    values: int = 0
    steps: int = 0

    def dearest(self, request: HttpRequest) -> float:
        """Return the cost of the operations of a request, in the dearest way to read it."""
        in_url = _ends(request.GET)
        bodies = (body if isinstance(body, list) else [body] for body in self._bodies(request))
        return max([sum([self._dearest(entry, in_url) for entry in entries]) for entries in bodies])

    def _bodies(self, request: HttpRequest) -> Iterator[object]:
        """Yield an operation, or a list of them, for each way to read the body."""
        if request.content_type in FORMS:
            yield from _ends(request.POST) or [{}]
            for text in request.POST.getlist("operations"):  # of a form with files; other servers leave it alone
                yield self._json(text)
            return
        body = request.body
        if request.content_type == "application/graphql":
            yield {"query": body.decode(errors="replace")}
        yield self._json(body) if body else {}

    def _json(self, data: str | bytes) -> object:
        """Parse JSON; return an empty operation for what is none. Raise _TooLarge before parsing too many values."""
        try:
            text = data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass")
            self.values += _number_of_values(text, MAX_VALUES - self.values)
            if self.values > MAX_VALUES:
                raise _TooLarge
            return json.loads(text)
        except ValueError:
            return {}

    def step(self) -> None:
        """Count a field, a value or an operation that is looked at. Raise _TooLarge for too many."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise _TooLarge

    def _dearest(self, entry: object, in_url: list[Parameters]) -> float:
        self.step()
        if not isinstance(entry, Mapping):
            entry = {}
        if not (entry or in_url):
            return 1
        texts: set[str] = set()  # each counts once towards the length, however many ways there are
        return max([1.0, *[self._cost(way, texts) for way in _ways(entry, in_url)]])

    def _cost(self, way: Parameters, texts: set[str]) -> float:
        query, variables, name = (way.get(key) for key in PARAMETERS)
        if not isinstance(query, str):
            return 1  # of a persisted operation there is but a name
        self._note(query, texts)
        if isinstance(variables, str):
            self._note(variables, texts)
            variables = self._json(variables)
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
        return max([_Operation(self, one, fragments, given).cost() for one in named], default=1)

    def _note(self, text: str, texts: set[str]) -> None:
        if text not in texts:
            texts.add(text)
            self.length += len(text)
        if self.length > self.tuning.max_length:
            raise _TooLarge


@dataclass(slots=True)
class _Operation:
    """One operation. Each fragment and variable is looked at once, however often it is used."""

    reading: _Reading
    node: OperationDefinitionNode
    fragments: Mapping[str, FragmentDefinitionNode]
    variables: Mapping[str, object]
    _spread: dict[str, float] = field(default_factory=dict)
    _sizes: dict[tuple[bool, str], float] = field(default_factory=dict)
    _defaults: dict[str, object] = field(init=False)

    def __post_init__(self) -> None:
        definitions = self.node.variable_definitions or ()
        self._defaults = {one.variable.name.value: one.default_value for one in definitions}

    def cost(self) -> float:
        return self._selected(self.node.selection_set)

    def _selected(self, chosen: SelectionSetNode | None) -> float:
        total = 0.0
        for one in chosen.selections if chosen else ():
            self.reading.step()
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
            return self.reading.tuning.introspection
        sizes = [size for argument in one.arguments or () for size in self._found(argument.name.value, argument.value)]
        below = self._selected(one.selection_set)
        tuning = self.reading.tuning
        return tuning.field_costs.get(name, 1) + max([1, *sizes]) * tuning.depth_factor * below

    def _fragment(self, name: str) -> float:
        if name not in self._spread:
            self._spread[name] = 0  # a circle, which the server refuses, ends here
            if name in self.fragments:
                self._spread[name] = self._selected(self.fragments[name].selection_set)
        return self._spread[name]

    def _found(self, name: str, value: object) -> Iterator[float]:
        """The sizes of lists that an argument asks for, at any depth: of the query's own values, or of JSON's."""
        waiting = [(name, value)]
        while waiting:
            name, value = waiting.pop()
            self.reading.step()
            is_size = name in self.reading.tuning.list_arguments
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
                case IntValueNode() | FloatValueNode() if is_size:
                    yield min(float(value.value), UNAFFORDABLE_COST)
                case int() | float() if is_size and value >= 1:
                    yield min(value, UNAFFORDABLE_COST)

    def _of_variable(self, is_size: bool, name: str, variable: str) -> float:
        if (is_size, variable) not in self._sizes:
            value = self.variables.get(variable, self._defaults.get(variable))
            self._sizes[is_size, variable] = max(self._found(name, value), default=1)
        return self._sizes[is_size, variable]
