"""Blocks of all documentation pages and of the README, and the answers to their commands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from tests.outside.environments import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.rst")))
RST = re.compile(
    r"^(?P<indent> *)\.\. code-block:: (?P<language>\w+)\n"
    r"(?P<options>(?:(?P=indent)   :.*\n)*)\n"
    r"(?P<code>(?:(?:(?P=indent)   .*)?\n)+)",
    re.MULTILINE,
)
FENCED = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
AT_THE_END = ", at the end"
# What a block that belongs into the settings sets, one of these at least.
SETTINGS = {"AUTHENTICATION_BACKENDS", "CACHES", "CHANNEL_LAYERS", "DJANGO_THROTTLE", "INSTALLED_APPS"}
SETTINGS |= {"LOGGING", "MIDDLEWARE", "REST_FRAMEWORK", "RULES", "TEST_RUNNER"}


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code; ``caption`` is the file that it belongs to, where the page names one."""

    page: str
    line: int
    language: str
    caption: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str:
        path = self.caption.removesuffix(AT_THE_END)
        return path if re.fullmatch(r"[\w./-]+\.\w+", path) else ""

    @property
    def is_appended(self) -> bool:
        return self.caption.endswith(AT_THE_END)

    @property
    def sets(self) -> set[str]:
        if self.language != "python":
            return set()
        targets = []
        try:
            body = ast.parse(self.code).body
        except SyntaxError as error:
            raise SyntaxError(f"{self} is a fragment, and cannot be pasted: {error}") from error
        for statement in body:
            match statement:
                case ast.Assign():
                    targets += statement.targets
                case ast.AugAssign():
                    targets.append(statement.target)
        names = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        return names & SETTINGS


def blocks_of(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for found in (FENCED if path.suffix == ".md" else RST).finditer(text):
        caption = re.search(r":caption: (.*)", found.groupdict().get("options") or "")
        yield Block(
            page=path.name,
            line=text.count("\n", 0, found.start()) + 1,
            language=found["language"],
            caption=caption[1] if caption else "",
            code=dedent(found["code"]).rstrip("\n") + "\n",
        )


BLOCKS = tuple(block for page in PAGES for block in blocks_of(page))


def page(name: str) -> tuple[Block, ...]:
    return tuple(block for block in BLOCKS if block.page == name)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a console block, and the lines that the page shows as its answer."""

    block: Block
    line: str
    answer: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.block} {self.line}"


def commands(blocks: tuple[Block, ...]) -> Iterator[Command]:
    """The commands of console blocks: lines that begin with ``$``, or all of a block in which none does."""
    for block in blocks:
        if block.language == "console":
            yield from _commands(block)


def _commands(block: Block) -> Iterator[Command]:
    lines = block.code.replace("\\\n", "").splitlines()
    if not any(line.startswith("$ ") for line in lines):
        lines = [f"$ {line}" for line in lines if line.strip()]
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield Command(block, lines[start][2:].partition("  # ")[0].strip(), tuple(lines[start + 1 : end]))


# The numbers that are others each time: how long until something is there again.
WAIT = re.compile(r"(;t=|Retry-After: |in |\"retry_after\": )[\d.]+(?: (?:second|minute|hour|day)s?\b)?", re.IGNORECASE)
# What a site's own secret is in, or the clock of the wall.
OTHERS = re.compile(r'(?<="reference": ")[0-9a-f]{8}|(?<="starts_at": ")[^"]+|(?<=Location: /later/)\S+')
STATUS = re.compile(r"^(HTTP/[\d.]+ \d+).*")  # without the reason, which is the server's affair
HEADER = re.compile(r"^[A-Za-z-]+: ")


def plain(line: str) -> str:
    """A line without what differs from run to run; names of header fields in lower case, as some servers send them."""
    line = STATUS.sub(r"\1", WAIT.sub(r"\1N", OTHERS.sub("N", line.rstrip())))
    name, separator, value = line.partition(": ")
    return f"{name.lower()}: {value}" if separator and HEADER.match(line) else line


def assert_shown(shown: Iterable[str], printed: str) -> None:
    """Every line that the page shows is in what was printed; header fields in any order, other lines in theirs."""
    lines = [plain(line) for line in printed.splitlines()]
    wanted = [plain(line) for line in shown if line.strip()]
    fields = [line for line in wanted if HEADER.match(line)]
    assert set(fields) <= set(lines), f"{set(fields) - set(lines)} not in:\n{printed}"
    rest = iter(line for line in lines if not HEADER.match(line))
    for line in wanted:
        if not HEADER.match(line):
            assert line in rest, f"{line!r}, as shown, is not (in its place) in:\n{printed}"
