"""Print figures of the package's layout (``make house``), for whoever plans a clean-up. No test bounds them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = "django_throttle"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def modules() -> dict[str, ast.Module]:
    trees = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        if "migrations" not in path.parts:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            trees[name.removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def measure() -> dict[str, int]:
    trees = modules()
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / PACKAGE).rglob("*.py"))
    with_types = {name: set(_imports(tree)) - {name} for name, tree in trees.items()}
    return {
        "modules": len(trees),
        "lines": lines,
        "in circles at run time": len(in_circles({name: run_time_imports(name) for name in trees})),
        "in circles with types": len(in_circles(with_types)),
        "lines of sync and async twins": sum(lines for tree in trees.values() for lines, *_ in twins(tree)),
    }


def run_time_imports(name: str) -> set[str]:
    """Return the modules of the package that a module imports: inside functions and by name too, not for types."""
    return set(_imports(modules()[name], types=False)) - {name}


def _imports(node: ast.AST, *, types: bool = True) -> Iterator[str]:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) if not types:
            return
        case ast.ImportFrom(module=str(module), names=names):
            found = [name if (name := f"{module}.{alias.name}") in modules() else module for alias in names]
            yield from (each for each in found if each in modules())
        case ast.Import(names=names):
            yield from (alias.name for alias in names if alias.name in modules())
        case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(module))]):
            yield from [module] if module in modules() else []
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, types=types)


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


def twins(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield the lines and names of each pair ``x`` and ``ax`` with the same body, half of their lines at least."""
    for scope in ast.walk(tree):
        body = getattr(scope, "body", None)
        here = [node for node in body if isinstance(node, FUNCTIONS)] if isinstance(body, list) else []
        for sync in here:
            names = {"a" + sync.name.strip("_"), f"{sync.name.strip('_')}_async"}
            for node in here:
                if node.name.strip("_") in names and _are_alike(sync, node):
                    yield _length(sync) + _length(node), sync.name, node.name


def _are_alike(sync: ast.AST, awaited: ast.AST) -> bool:
    texts = [
        [re.sub(r"\b(?:await|async) |\b(_*)a(?=[a-z])", r"\1", line.strip()) for line in ast.unparse(node).splitlines()]
        for node in (_without_docstring(sync), _without_docstring(awaited))
    ]
    return SequenceMatcher(None, *texts).ratio() >= 0.5


def _without_docstring(function: Any) -> ast.Module:
    return ast.Module(function.body[ast.get_docstring(function) is not None :], [])


def _length(function: Any) -> int:
    body = _without_docstring(function).body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def main() -> None:
    for module, tree in modules().items():
        for lines, sync, awaited in twins(tree):
            print(f"{lines:4} lines  {module}: {sync}, {awaited}")
    for name, figure in measure().items():
        print(f"{name:32}{figure:>8}")


if __name__ == "__main__":
    main()
