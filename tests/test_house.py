"""Rules of architecture: what every file of the package keeps to, checked by reading them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "django_throttle"
CORE = PACKAGE / "core"
#: Modules that core may not import: frameworks, stores, clocks, chance, threads and the system.
IMPURE = {
    "django", "redis", "django_redis", "asgiref", "channels", "rest_framework", "time", "random", "secrets",
    "asyncio", "threading", "socket", "os", "subprocess",
}  # fmt: skip
#: Modules that run what they read.
LOADERS = {"pickle", "marshal", "shelve", "yaml", "dill"}


def faults_in(paths: Iterator[Path], find: Callable[[ast.AST], str]) -> list[str]:
    """Return the file, line and fault of each node that ``find`` complains of."""
    return [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} {fault}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (fault := find(node))
    ]


def imported(node: ast.AST) -> list[str]:
    """Return the modules that a node imports, by ``import_module`` too."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module):
            return [module or ""]
        case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[first, *_]):
            return [first.value] if isinstance(first, ast.Constant) else ["anything"]
    return []


def test_core_is_pure() -> None:
    def impurity(node: ast.AST) -> str:
        for module in imported(node):
            top, *rest = module.split(".")
            if top in IMPURE or (top == "django_throttle" and rest[:1] not in (["core"], ["exceptions"])):
                return f"imports {module}"
        return ""

    assert faults_in(CORE.rglob("*.py"), impurity) == []


@cache
def modules() -> dict[str, ast.Module]:
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if "migrations" not in path.parts:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            trees[name.removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def run_time_imports(name: str) -> set[str]:
    """Return the modules of the package that a module imports: inside functions and by name too, not for types."""
    return set(_imports(modules()[name])) - {name}


def _imports(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.ImportFrom(module=str(module), names=names):
            found = [name if (name := f"{module}.{alias.name}") in modules() else module for alias in names]
            yield from (each for each in found if each in modules())
        case ast.Import(names=names):
            yield from (alias.name for alias in names if alias.name in modules())
        case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(module))]):
            yield from [module] if module in modules() else []
    for child in ast.iter_child_nodes(node):
        yield from _imports(child)


def in_circles(graph: dict[str, set[str]]) -> set[str]:
    """Return the nodes that can be reached from themselves."""

    def reached(node: str) -> set[str]:
        found, left = set[str](), [*graph[node]]
        while left:
            if (each := left.pop()) not in found:
                found.add(each)
                left += graph.get(each, ())
        return found

    return {node for node in graph if node in reached(node)}


def test_imports_go_down_only() -> None:
    """Those inside functions and by name included, those for type checkers not."""
    graph = {name: run_time_imports(name) for name in modules()}
    assert sum(map(len, graph.values())) > len(graph)
    assert in_circles(graph) == set()


#: Packages and modules from the top down. One imports those of lower layers, and of its own package.
LAYERS = [
    ["console", "contrib"],
    ["pytest_plugin"],
    ["apps", "testing"],
    ["admin", "management"],
    ["checks"],
    ["urls", "explain"],
    ["middleware"],
    ["channels", "decorators", "drf", "tasks"],
    ["websockets"],
    ["http"],
    ["later"],
    ["limiter"],
    ["agent"],
    ["models"],
    ["observe"],
    ["connections"],
    ["rulebook"],
    ["costs"],
    ["stores"],
    ["local"],
    ["identity"],
    ["conf", "translated"],
    ["exceptions", "signals"],
    ["core"],
    ["detect_test_run", "runtime"],
]


def test_packages_import_lower_layers_only() -> None:
    """So nothing imports ``contrib`` or ``console``: both are optional."""
    depths = {name: depth for depth, layer in enumerate(LAYERS) for name in layer}

    def package(module: str) -> str:
        return module.split(".")[1] if "." in module else ""

    upward = [
        f"{module} imports {other}"
        for module in modules()
        for other in sorted(run_time_imports(module))
        if package(module)
        and package(other) not in ("", package(module))
        and depths[package(other)] <= depths[package(module)]
    ]
    assert upward == []


def test_only_the_memory_store_reads_the_wall_clock() -> None:
    def reading(node: ast.AST) -> str:
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr="time" | "time_ns"):
                return "reads the wall clock"
            case ast.ImportFrom(module="time", names=names) if {"time", "time_ns"} & {alias.name for alias in names}:
                return "imports the wall clock"
        return ""

    memory = PACKAGE / "stores" / "memory.py"
    assert faults_in((path for path in PACKAGE.rglob("*.py") if path != memory), reading) == []
    assert faults_in(iter([memory]), reading) != []


@pytest.mark.row("A61")
def test_nothing_that_is_read_is_run() -> None:
    def running(node: ast.AST) -> str:
        match node:
            case ast.Call(func=ast.Name(id="eval" | "exec" | "compile" | "__import__" as name)):
                return f"calls {name}"
        return ", ".join(module for module in imported(node) if module.split(".")[0] in LOADERS)

    assert faults_in(PACKAGE.rglob("*.py"), running) == []
    scripts = {path.name: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.lua")}
    assert [name for name, text in scripts.items() if re.search(r"\b(load|loadstring|dofile|setfenv)\b", text)] == []
