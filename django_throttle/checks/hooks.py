"""The hooks that are told of decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from django.core.checks import CheckMessage

from django_throttle.checks.given import Given, value_of, wrong
from django_throttle.identity import is_async
from django_throttle.observe.hooks import load


def _hooks(given: Given) -> Iterator[CheckMessage]:
    paths = value_of(given, "HOOKS")
    if isinstance(paths, str) or not isinstance(paths, Sequence):
        yield wrong("E075", f"HOOKS is a list of dotted paths, not {paths!r}")
        return
    for path in paths:
        yield from _hook(path) if isinstance(path, str) else [wrong("E075", f"HOOKS: {path!r} is no dotted path")]


def _hook(path: str) -> Iterator[CheckMessage]:
    try:
        hook = load(path)
    except Exception as error:  # noqa: BLE001 - a module of the site's own may fail in any way
        yield wrong("E076", f"HOOKS: {path!r} cannot be imported ({error})")
        return
    if not callable(hook):
        yield wrong("E076", f"HOOKS: {path!r} cannot be called")
    elif is_async(hook):
        yield wrong("E077", f"HOOKS: {path!r} is async; a hook is a plain function, which is called for every decision")


HOOK_CHECKS: Final = (_hooks,)
