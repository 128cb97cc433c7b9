"""Print how each page reads, and fail if one is over a limit: ``make prose``, after ``make docs``.

The text of paragraphs is read; code and quotations are not. A sentence ends with a mark and a space, or with its
paragraph. Passive is a form of "to be" before a participle, so the share is a little too high. It also finds patterns
that readers stumbled over, in tables too, rows that a text has broken in two, and code that is too wide for a screen or
names no file.
"""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from docutils import nodes
from sphinx import addnodes

DOCS: Final = Path(__file__).parent
DOCTREES: Final = DOCS / "_build" / "html" / ".doctrees"
MEAN_WORDS, MOST_WORDS, MANY_COMMAS, MANY_COMMAS_SHARE, FEW = 17.0, 30, 2, 0.05, 3
NOT_PROSE: Final = (
    *(nodes.table, nodes.literal_block, nodes.block_quote, nodes.comment, nodes.term, nodes.caption),
    addnodes.desc,  # docstrings
)
COMMA: Final = re.compile(r",(?!\d)(?! code\b)")  # not those of numbers, or between names
PASSIVE: Final = re.compile(
    r"\b(?:is|are|was|were|be|been|being)(?: \w+ly| not| never| also| only| then)? "
    r"(?:\w+ed|kept|made|known|sent|told|taken|given|held|read|written|shown|said|found|left|lost|cut|put|paid|set|seen"
    r"|done|drawn|bought|meant|hidden|begun|chosen)\b"
)
#: Patterns that readers had to read twice: rare words, a missing noun, the word order of another language.
STUMBLES: Final = re.compile(
    r"\b(?:afresh|anew|whoever|whatever|whom|heeds?|for good|stands? there|(?:for )?so long|so many times|those who"
    r"|(?<!Front )doors?|as ever|in vain|likewise|save (?:for|that)|thousand million"
    r"|said|says|told|tells"  # a page, a table or a setting shows, decides or chooses
    r"|what (?:is|was) (?:used|left)|(?<!there )(?:is|are) no(?! longer| more)|nor (?:is|has|do|does|may|can)"
    r"|(?:that|those) of|since (?:it|they|redis)|, as (?:it|they|there|nobody|the \w+ \w+s))\b",
    re.IGNORECASE,
)
BEGINNINGS: Final = re.compile(r"(?:Of|Where|What|Whether|Those)\b.*[^?]$")  # of a sentence that is not a question
WIDEST: Final = 78  # columns of code that a page shows without a bar to scroll
IN_FILES: Final = ("python", "html", "ini", "javascript", "nginx", "yaml")
WITHOUT_FILES: Final = "api"  # the page whose examples belong to no file


class Figures(NamedTuple):
    """Figures of one page: sentences, words in each, faults by kind, and the share of passives."""

    sentences: int
    mean: float
    too_long: list[str]
    many_commas: list[str]
    passive: float
    stumbles: list[str]

    @property
    def faults(self) -> list[str]:
        faults = [f"reads like a riddle: {sentence}" for sentence in self.stumbles]
        faults += [f"over {MOST_WORDS} words: {sentence}" for sentence in self.too_long]
        if self.mean > MEAN_WORDS:
            faults.append(f"{self.mean:.1f} words a sentence, over {MEAN_WORDS:g}")
        if len(self.many_commas) > max(FEW, MANY_COMMAS_SHARE * self.sentences):
            faults += [f"more than {MANY_COMMAS} commas: {sentence}" for sentence in self.many_commas]
        return faults


def sentences(tree: nodes.Node) -> Iterator[str]:
    """Yield the sentences of a page; a piece of code counts as a word."""
    for paragraph in tree.findall(nodes.paragraph):
        parents: list[Any] = []
        parent: Any = paragraph.parent
        while parent is not None:
            parents.append(parent)
            parent = parent.parent
        if any(isinstance(node, NOT_PROSE) for node in parents):
            continue
        text = "".join("code" if _is_code(part) else part.astext() for part in _parts(paragraph))
        split = re.split(r"(?<=[.!?])\s+", " ".join(text.split()))
        yield from (sentence for sentence in split if len(_words(sentence)) > 2)


def _is_code(part: nodes.Node) -> bool:
    return isinstance(part, nodes.literal)


def _parts(node: nodes.Node) -> Iterator[nodes.Node]:
    """Yield texts, and code as a whole."""
    for child in node.children:
        if isinstance(child, nodes.Text) or _is_code(child):
            yield child
        else:
            yield from _parts(child)


def _words(sentence: str) -> list[str]:
    return re.findall(r"[\w'’-]+", sentence)


def figures(page: list[str]) -> Figures:
    """Return the figures of a page of these sentences."""
    lengths = [len(_words(sentence)) for sentence in page]
    return Figures(
        len(page),
        sum(lengths) / max(1, len(page)),
        [sentence for sentence, length in zip(page, lengths, strict=True) if length > MOST_WORDS],
        [sentence for sentence in page if len(COMMA.findall(sentence)) > MANY_COMMAS],
        sum(bool(PASSIVE.search(sentence)) for sentence in page) / max(1, len(page)),
        [sentence for sentence in page if STUMBLES.search(sentence) or BEGINNINGS.match(sentence)],
    )


def broken(tree: nodes.Node, page: str) -> Iterator[str]:
    """Yield rows that begin with an empty cell or end theirs in a comma, and code that is cut or names no file."""
    for row in tree.findall(nodes.row):
        text = row.children[0].astext().strip()
        if not isinstance(row.parent, nodes.thead) and (not text or text.endswith(",")):
            yield f"a row is broken: {row.astext()[:60]!r}"
        yield from (f"reads like a riddle: {cell.astext()}" for cell in row.children if STUMBLES.search(cell.astext()))
    for block in tree.findall(nodes.literal_block):
        if block.get("language") in IN_FILES:
            yield from (f"over {WIDEST} columns: {line}" for line in block.astext().splitlines() if len(line) > WIDEST)
            if page != WITHOUT_FILES and not isinstance(block.parent, nodes.container):
                yield f"no :caption: names the file: {block.astext()[:60]!r}"


def main() -> int:
    """Print the figures of every page, and what is wrong; the exit status is 1 where anything is."""
    print(f"{'page':16}{'sentences':>10}{'words':>7}{'> ' + str(MOST_WORDS):>6}{'> 2 commas':>12}{'passive':>9}")
    wrong = []
    for path in sorted(DOCTREES.rglob("*.doctree")):
        if not (DOCS / path.relative_to(DOCTREES)).with_suffix(".rst").exists():
            continue  # of a page that is gone
        with path.open("rb") as file:
            tree = pickle.load(file)  # noqa: S301 - Sphinx has just written it
        page = figures(list(sentences(tree)))
        commas = len(page.many_commas) / max(1, page.sentences)
        row = f"{page.sentences:>10}{page.mean:>7.1f}{len(page.too_long):>6}{commas:>12.1%}{page.passive:>9.0%}"
        print(f"{path.stem:16}{row}")
        wrong += [f"{path.stem}: {fault}" for fault in (*page.faults, *broken(tree, path.stem))]
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
