"""Discovery of the decorators around a view, and of those that may refuse a call."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from types import CellType
from typing import Any, Final

from asgiref.sync import AsyncToSync, SyncToAsync

DISPATCH: Final = "dispatch"
# Modules whose decorators only mark a view or change its response.
HARMLESS_MODULES: Final = frozenset((
    "django.views.decorators.cache", "django.views.decorators.clickjacking",
    "django.views.decorators.common", "django.views.decorators.csp", "django.views.decorators.csrf",
    "django.views.decorators.debug", "django.views.decorators.vary",
))  # fmt: skip
_METHOD_DECORATOR: Final = "_multi_decorate.<locals>._wrapper"  # of django.utils.decorators


def view_layers(view: object) -> Iterator[Any]:
    """Yield the decorators around a view, from the outermost to the innermost, and last the view itself."""
    while view is not None:
        yield view
        inner = view.func if isinstance(view, partial | SyncToAsync) else getattr(view, "awaitable", None)
        view = getattr(view, "__wrapped__", inner)


def applied_layers(view: object) -> Iterator[Any]:
    """Yield the layers of a view, and before each ``method_decorator`` the decorators that it applies."""
    for layer in view_layers(view):
        yield from reversed(method_decorators(layer) or ())
        yield layer


def guard_in(view: object) -> str | None:
    """Return the name of the outermost decorator or class in a view that may refuse a call, or None.

    Unknown decorators count: a site's own may well check a permission.
    """
    for layer in view_layers(view):
        kind = getattr(layer, "view_class", None) or getattr(layer, "cls", None)
        if isinstance(kind, type):
            return f"{kind.__name__}.as_view()"
        if _is_dispatch(layer):
            return getattr(layer, "__qualname__", DISPATCH)
        if (decorators := method_decorators(layer)) is not None:
            outermost_first = reversed(decorators)
            if guard := next(
                (_name(inner) for inner in outermost_first if _module(inner) not in HARMLESS_MODULES), None
            ):
                return guard
        elif _may_refuse(layer):
            return _name(layer)
    return None


def _may_refuse(layer: object) -> bool:
    """Return True for a decorator that is not known to be harmless, also if it hides the function that it wraps."""
    if isinstance(layer, partial):
        return any(map(callable, layer.args))  # the partial's function may or may not call them
    if isinstance(layer, SyncToAsync | AsyncToSync) or _module(layer) in HARMLESS_MODULES:
        return False
    cells = closure_of(layer)
    if _module(layer) == "contextlib":
        block = cells.get("self")
        return not type(block).__module__.startswith("django.")  # such as transaction.atomic
    if hasattr(layer, "__wrapped__") or not inspect.isroutine(layer):
        return True
    return "<locals>" in layer.__qualname__ and any(map(inspect.isroutine, cells.values()))


def closure_of(layer: object) -> dict[str, Any]:
    """Return the variables in the closure of a layer, by name."""
    code, closure = getattr(layer, "__code__", None), getattr(layer, "__closure__", None)
    if code is None or closure is None:
        return {}
    return {name: _content(cell) for name, cell in zip(code.co_freevars, closure, strict=True)}


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is still empty
        return None


def method_decorators(layer: object) -> Sequence[Any] | None:
    """Return the decorators that Django's ``method_decorator`` applies in this layer, the innermost first."""
    code = getattr(layer, "__code__", None)
    if code is None or code.co_qualname != _METHOD_DECORATOR:
        return None
    decorators: Sequence[object] = closure_of(layer)["decorators"]
    return decorators


def _is_dispatch(layer: object) -> bool:
    """Return True if the layer is a method ``dispatch``, and not a function of that name."""
    owner, _, name = getattr(layer, "__qualname__", "").rpartition(".")
    return name == DISPATCH and owner != "" and not owner.endswith("<locals>")


def _module(decorator: object) -> str:
    """Return the module that defines a decorator. Its ``__module__`` may be another, because of ``wraps``."""
    names = getattr(decorator, "__globals__", None) or {}
    return str(names.get("__name__", type(decorator).__module__))


def _name(decorator: object) -> str:
    code = getattr(decorator, "__code__", None)
    return f"{_module(decorator)}.{type(decorator).__name__ if code is None else code.co_qualname.partition('.')[0]}"
