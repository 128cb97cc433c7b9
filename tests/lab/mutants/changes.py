"""Mutants: small changes of one expression each, drawn from the modules that decide and count.

A mutant is named by its module, function, expression and kind of change, not by its line. So the same seed draws the
same mutants from two commits, as far as both have that code.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
AREAS = ("core", "stores", "http", "sockets", "rulebook", "connections")

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
}  # fmt: skip


class Mutant(NamedTuple):
    """One change: the text of ``path`` between two offsets becomes ``text``."""

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
