"""Change the package in 300 places, one at a time, and print the changes that no test notices.

``python -m tests.lab.mutants [--count 300] [--seed 1] [--tree PATH]``. A run with coverage first says which tests take
which line. A mutant is shown to the tests that take its line, the quickest first, ``--seconds`` of them at most. It is
killed if one of them fails. Tests that fail without a change are left out, and so are those that bound a time.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple
from xml.etree import ElementTree

from coverage import CoverageData

ROOT = Path(__file__).parents[3]
CHOSEN = "smoke or not (servers or browser or timing)"
HANGING_SECONDS = 90.0
IGNORED = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "_build", ".coverage*")


class Suite(NamedTuple):
    """The tests that pass without a change: their seconds, and those that take each line of a file."""

    seconds: Mapping[str, float]
    takers: Mapping[tuple[str, int], set[str]]  # by file below the root, and line

    def tests_of(self, mutant: Mutant, budget: float) -> list[str]:
        """Return the tests to show a mutant to, the quickest first, as long as they fit the budget of seconds."""
        takers = set().union(*(self.takers.get((mutant.path, line), set()) for line in mutant.lines))
        chosen, left = [], budget
        for test in sorted(takers & self.seconds.keys(), key=lambda test: (self.seconds[test], test)):
            left -= self.seconds[test] + 0.002
            if left < 0 and chosen:
                break
            chosen.append(test)
        return chosen


def measure(tree: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses=2", "--dist=loadfile", "-m", CHOSEN]
    command += ["--cov=django_throttle", "--cov-branch", "--cov-context=test", "--cov-report="]
    command += [f"--junitxml={folder / 'report.xml'}", "-p", "no:cacheprovider"]
    subprocess.run(command, cwd=tree, env={**os.environ, "COVERAGE_FILE": str(folder / "coverage")}, check=False)


def read(tree: Path, folder: Path) -> Suite:
    seconds = {}
    for case in ElementTree.parse(folder / "report.xml").iter("testcase"):
        if not {"failure", "error", "skipped"} & {child.tag for child in case}:
            *parts, name = case.get("classname", "").split("."), case.get("name", "")
            file, classes = _file_of(tree, parts[0])
            seconds["::".join([file, *classes, name])] = float(case.get("time", 0))
    data = CoverageData(str(folder / "coverage"))
    data.read()
    takers: dict[tuple[str, int], set[str]] = {}
    for path in data.measured_files():
        relative = path[path.index("django_throttle/") :]
        for line, contexts in data.contexts_by_lineno(path).items():
            takers[relative, line] = {context.rpartition("|")[0] for context in contexts}
    return Suite(seconds, takers)


def _file_of(tree: Path, parts: list[str]) -> tuple[str, list[str]]:
    for at in range(len(parts), 0, -1):
        file = "/".join(parts[:at]) + ".py"
        if (tree / file).exists():
            return file, parts[at:]
    raise FileNotFoundError(".".join(parts))


def outcomes(mutants: list[Mutant], suite: Suite, tree: Path, budget: float, jobs: int) -> Iterator[tuple[Mutant, str]]:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            shutil.copytree(tree, Path(folder, str(number), "tree"), ignore=IGNORED)
            if (tree.parent / "shared").exists():
                Path(folder, str(number), "shared").symlink_to(tree.parent / "shared")
            trees.put(Path(folder, str(number), "tree"))

        def play(mutant: Mutant) -> tuple[Mutant, str]:
            tests = suite.tests_of(mutant, budget)
            if not tests:
                return mutant, "not covered"
            copy = trees.get()
            try:
                return mutant, "killed" if notices(copy, mutant, tests) else "survived"
            finally:
                trees.put(copy)

        yield from pool.map(play, mutants)


def notices(tree: Path, mutant: Mutant, tests: list[str]) -> bool:
    """Return whether a test fails with the mutant in the tree, which is as before afterwards."""
    path = tree / mutant.path
    before = path.read_bytes()
    arguments = tree / "tests.txt"
    arguments.write_text("\n".join(tests))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist"]
    try:
        path.write_bytes(mutant.apply(before))
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)}
        command.append(f"@{arguments.name}")
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, timeout=HANGING_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_bytes(before)
    return done.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout of this project")
    parser.add_argument("--seconds", type=float, default=10.0, help="of tests that a mutant is shown to")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--measured", type=Path, help="a folder with a report and coverage that are kept or reused")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.measured or Path(temporary)
        if not (folder / "report.xml").exists():
            measure(options.tree, folder)
        suite = read(options.tree, folder)
    mutants = draw(options.count, options.seed, options.tree)
    counts: Counter[str] = Counter()
    found = outcomes(mutants, suite, options.tree, options.seconds, options.jobs)
    for number, (mutant, outcome) in enumerate(found, 1):
        counts[outcome] += 1
        print(f"{number:4}  {outcome:12} {mutant.name}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())), f"of {len(mutants)} mutants")


AREAS = ("core", "stores", "http", "websockets", "rulebook", "connections")

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
}  # fmt: skip


class Mutant(NamedTuple):
    name: str
    path: str  # below the root
    lines: range
    start: int  # offsets in UTF-8, as ast counts columns
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def draw(count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    mutants = [
        mutant
        for area in AREAS
        for path in sorted((root / "django_throttle" / area).rglob("*.py"))
        for mutant in _mutants(root, path)
    ]
    return sorted(mutants, key=lambda mutant: hashlib.sha256(f"{seed}:{mutant.name}".encode()).digest())[:count]


def _mutants(root: Path, path: Path) -> Iterator[Mutant]:
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen: Counter[str] = Counter()
    relative = str(path.relative_to(root))
    for scope, node, text, kind in _changes(ast.parse(source), ()):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        name = f"{relative}:{scope}: {ast.unparse(node)} -> {text} ({kind})"
        seen[name] += 1
        lines = range(node.lineno, (node.end_lineno or 0) + 1)
        yield Mutant(f"{name} #{seen[name]}", relative, lines, start, end, f"({text})")


def _changes(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[str, ast.expr, str, str]]:
    """Yield (function, expression, its replacement, kind) for each change in functions below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = (*scope, child.name)
            for statement in child.body:
                if isinstance(child, ast.ClassDef):
                    yield from _changes(ast.Module([statement], []), inner)
                else:
                    yield from _in_function(statement, ".".join(inner))
        elif isinstance(child, ast.If | ast.Try):
            yield from _changes(child, scope)


def _in_function(statement: ast.stmt, scope: str) -> Iterator[tuple[str, ast.expr, str, str]]:
    for node in ast.walk(statement):
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in COMPARISONS:
                changed: ast.expr = ast.Compare(left, [COMPARISONS[type(operator)]()], [right])
                yield scope, node, ast.unparse(changed), "comparison"
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in ARITHMETIC:
                if not any(isinstance(side, ast.Constant | ast.JoinedStr) and _is_text(side) for side in (left, right)):
                    changed = ast.BinOp(left, ARITHMETIC[type(operator)](), right)
                    yield scope, node, ast.unparse(changed), "arithmetic"
            case ast.BoolOp(op=operator, values=values):
                changed = ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
                yield scope, node, ast.unparse(changed), "boolean"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield scope, node, ast.unparse(operand), "not"
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yield scope, node, ast.unparse(ast.IfExp(test, orelse, body)), "branches"
            case ast.If(test=test) if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                if not any(isinstance(part, ast.NamedExpr) for part in ast.walk(test)):
                    yield scope, test, f"not {ast.unparse(test)}", "condition"
            case ast.Constant(value=bool() as value):
                yield scope, node, repr(not value), "constant"
            case ast.Constant(value=int() as number):
                yield scope, node, repr(number + 1), "constant"
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield scope, value, "None", "result"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


if __name__ == "__main__":
    main()
