"""Print figures of the package's layout (``make house``), for whoever plans a clean-up. No test bounds them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = "django_throttle"
SMALL = 60  # lines: a module below is shown by the tests of what uses it
# Modules whose tests are one table over all of them.
TOGETHER = {"core/algorithms": "core/test_algorithms.py"}
# Public in spite of the underscore: of named tuples, Django's models and REST framework's requests.
FOREIGN = {"_replace", "_asdict", "_meta", "_request"}


def modules() -> dict[str, Path]:
    """Every module of the package but migrations, by its dotted name."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        if "migrations" not in path.parts:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def measure() -> dict[str, float]:
    """Return the figures of the layout by name."""
    paths = modules()
    texts = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = sum(len(text.splitlines()) for text in texts.values())
    everything = {name: set(_imported(tree, paths)) - {name} for name, tree in trees.items()}
    at_once = {name: set(_imported(tree, paths, at_once=True)) - {name} for name, tree in trees.items()}
    return {
        "modules": len(paths),
        "lines": lines,
        "header lines, %": round(100 * sum(map(_header, trees.values())) / lines, 1),
        "largest fan-out": max(map(len, everything.values())),
        "longest function": max(length for tree in trees.values() for length in _lengths(tree)),
        "in circles at run time": len(in_circles(at_once)),
        "in circles with types": len(in_circles(everything)),
        "lines of sync and async twins": sum(twin.lines for name, tree in trees.items() for twin in twins(name, tree)),
        "modules without a test file": len(untested()),
        "tests' lines at private names": len(private_lines()),
    }


def untested() -> list[str]:
    """The modules of ``SMALL`` lines or more that no test file mirrors, each with the file that it lacks."""
    lacking = []
    for name, path in modules().items():
        if path.name != "__init__.py" and len(path.read_text(encoding="utf-8").splitlines()) >= SMALL:
            inside = path.relative_to(ROOT / PACKAGE)
            file = TOGETHER.get(f"{inside.parent}", f"{inside.parent / f'test_{inside.name}'}")
            if not (ROOT / "tests" / file).exists():
                lacking.append(f"{name} has no tests/{file}")
    return lacking


def private_lines() -> list[str]:
    """The lines of tests that use a private name of the package: ``there._name``, or as a text that is patched."""
    ours = {name for path in modules().values() for name in _private(ast.parse(path.read_text(encoding="utf-8")))}
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        lines = {line for line, name in foreign(tree) if name in ours - FOREIGN}
        found += [f"{path.relative_to(ROOT)}:{line}" for line in sorted(lines)]
    return found


def _private(tree: ast.Module) -> Iterator[str]:
    """The names with one underscore in front that a module defines, on objects too."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name)
                | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store())
            ) if name.startswith("_") and not name.endswith("__"):  # fmt: skip
                yield name


def foreign(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines, and the names that they take from elsewhere: attributes of anything but ``self``, imports, texts."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.ImportFrom(module=str(module), names=names) if module.startswith(PACKAGE):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=args):
                texts = [arg.value for arg in args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
                yield from ((node.lineno, text.rpartition(".")[2]) for text in texts)


def _header(tree: ast.Module) -> int:
    """The lines of the docstring and of import statements, those for type checkers included."""
    nodes: list[Any] = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    if ast.get_docstring(tree) is not None:
        nodes.append(tree.body[0])
    return sum(node.end_lineno - node.lineno + 1 for node in nodes)


def _lengths(tree: ast.Module) -> Iterator[int]:
    yield 0
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or 0) - node.lineno + 1


class Twin(NamedTuple):
    """Two functions that do the same, one of them on an event loop, and the lines of both bodies."""

    module: str
    sync: str
    awaited: str
    lines: int


def twins(module: str, tree: ast.AST) -> list[Twin]:
    """The pairs of a module named as ``x`` and ``ax`` whose bodies are the same, half of their lines at least."""
    found = []
    for scope in ast.walk(tree):
        body = getattr(scope, "body", None)
        here = [one for one in body if isinstance(one, FUNCTIONS)] if isinstance(body, list) else []
        for sync in here:
            names = {"a" + sync.name.strip("_"), f"{sync.name.strip('_')}_async"}
            named = [one for one in here if one.name.strip("_") in names and _are_alike(sync, one)]
            found += [Twin(module, sync.name, one.name, _length(sync) + _length(one)) for one in named]
    return found


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _are_alike(sync: ast.AST, awaited: ast.AST) -> bool:
    texts = [
        [re.sub(r"\b(?:await|async) |\b(_*)a(?=[a-z])", r"\1", line.strip()) for line in ast.unparse(one).splitlines()]
        for one in (_without_words(sync), _without_words(awaited))
    ]
    return SequenceMatcher(None, *texts).ratio() >= 0.5


def _without_words(function: Any) -> ast.Module:
    """The body, without its docstring."""
    return ast.Module(function.body[ast.get_docstring(function) is not None :], [])


def _length(function: Any) -> int:
    body = _without_words(function).body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def _imported(tree: ast.Module, known: dict[str, Path], *, at_once: bool = False) -> Iterator[str]:
    """The modules of the package that this one imports: anywhere, or as soon as it is imported itself."""
    for node in tree.body if at_once else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield from (each for each in (name if name in known else node.module,) if each in known)


def in_circles(graph: dict[str, set[str]]) -> set[str]:
    """The nodes that can be reached from themselves."""
    left = dict(graph)
    circles: set[str] = set()
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            circle = set(error.args[1])
            circles |= circle
            name = "+".join(sorted(circle))  # one node from here on, so that the next circle is found
            joined = set().union(*(left.pop(each) for each in circle)) - circle
            left = {each: {name if to in circle else to for to in others} - {each} for each, others in left.items()}
            left[name] = joined
        else:
            return {part for each in circles for part in each.split("+")}


def main() -> None:
    """Print the twins, the modules without a test file, and each figure."""
    for name, path in modules().items():
        for twin in twins(name, ast.parse(path.read_text(encoding="utf-8"))):
            print(f"{twin.lines:4} lines  {twin.module}: {twin.sync}, {twin.awaited}")
    print(*untested(), sep="\n")
    for name, figure in measure().items():
        print(f"{name:32}{figure:>8}")


if __name__ == "__main__":
    main()
