"""The reference of the Python API has every public name, and its examples run."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from inspect import getdoc, isfunction

import pytest
from django.dispatch import Signal

from tests.outside.pages import BLOCKS
from tests.pages import DOCS, run, shown

PAGE = (DOCS / "reference" / "api.rst").read_text(encoding="utf-8")
MODULES = dict.fromkeys(re.findall(r"^\.\. (?:auto|current)module:: (\S+)", PAGE, re.MULTILINE))
LISTED = {
    name: re.findall(r"^\.\. auto(?:class|function|exception|data):: (\w+)", part, re.MULTILINE)
    for name, part in zip(
        MODULES, re.split(r"^\.\. (?:auto|current)module::", PAGE, flags=re.MULTILINE)[1:], strict=True
    )
}
# These list names for the package itself too; of them only what pages use is for sites.
OWN = {f"django_throttle.{name}" for name in ("identity", "observe", "history", "models")}
# By the design these are kept, whether a module lists its names or not.
KEPT = {
    "django_throttle.core": {"Rate", "Rule", "Decision"},
    "django_throttle.limiter": {"Limiter"},
    "django_throttle.stores": {"MemoryStore", "RedisStore", "get_store"},
    "django_throttle.drf": {"RuleThrottle", "AnonRateThrottle", "UserRateThrottle", "ScopedRateThrottle"},
    "django_throttle.channels": {"ThrottledConsumerMixin", "ThrottleMiddleware"},
    "django_throttle.middleware": {"ThrottleMiddleware"},
    "django_throttle.decorators": {"throttle"},
    "django_throttle.tasks": {"throttled_task"},
}
PYTHON = [ast.parse(block.code) for block in BLOCKS if block.language == "python"]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_there_and_documented(module: str) -> None:
    found = import_module(module)
    offered = () if module in OWN else getattr(found, "__all__", ())
    assert {*offered, *KEPT.get(module, ())} <= {*LISTED[module]}
    for name in LISTED[module]:
        value = getattr(found, name)
        assert getdoc(value) or not callable(value), name


def test_what_pages_import_is_there() -> None:
    imported = {
        (node.module, alias.name)
        for tree in PYTHON
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("django_throttle")
        for alias in node.names
    }
    listed = {(module, name) for module, names in LISTED.items() for name in names}
    modules = {tuple(module.rsplit(".", 1)) for module in MODULES}
    assert imported - listed - modules == set()


def test_every_signal_is_there() -> None:
    signals = import_module("django_throttle.signals")
    assert LISTED[signals.__name__] == [name for name, value in vars(signals).items() if isinstance(value, Signal)]


@pytest.mark.django_db
@pytest.mark.usefixtures("redis_server")
@pytest.mark.parametrize("code", shown("api"), ids=lambda code: code.split("\n")[0])
def test_the_examples_run(code: str) -> None:
    names = run(code)
    for signal in vars(import_module("django_throttle.signals")).values():
        if isinstance(signal, Signal):
            for receiver in filter(isfunction, names.values()):
                signal.disconnect(receiver)
