"""Which rules cover a scope, found without a look at each: there may be ten thousand, with as many wildcards."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

SPECIAL: Final = re.compile(r"[*?\[\]]")


class Pattern(NamedTuple):
    """A scope with wildcards, and the number of its rule.

    ``piece`` is a text that a scope must have in it, ``least`` how long it must be. ``is_simple`` is True where these
    and the beginning and the end, by which it is filed, are all that it asks for.
    """

    text: str
    number: int
    piece: str
    least: int
    is_simple: bool

    def covers(self, scope: str) -> bool:
        if self.piece not in scope or len(scope) < self.least:
            return False
        return self.is_simple or fnmatchcase(scope, self.text)


class Scopes:
    """Files the scopes of rules: whole texts by themselves, those with wildcards by how they begin and how they end."""

    def __init__(self, scopes: Iterable[Iterable[str]]) -> None:
        self._whole: dict[str, list[int]] = defaultdict(list)
        self._wild: dict[tuple[str, str], list[Pattern]] = defaultdict(list)
        for number, texts in enumerate(scopes):
            for text in texts:
                self._whole[text].append(number)
                if SPECIAL.search(text):
                    self._file(text, number)
        self._lengths = tuple({(len(begin), len(end)) for begin, end in self._wild})

    def find(self, scope: str) -> list[int]:
        """The numbers of the rules that cover it, in order."""
        found = set(self._whole.get(scope, ()))
        for begin, end in self._lengths:
            filed = self._wild.get((scope[:begin], scope[len(scope) - end :]))
            if filed is not None:
                found.update([pattern.number for pattern in filed if pattern.covers(scope)])
        return sorted(found)

    def _file(self, text: str, number: int) -> None:
        pieces = SPECIAL.split(text)
        has_classes = "[" in text
        piece = "" if has_classes else max(pieces, key=len)
        is_simple = len(pieces) == 2 and "*" in text
        least = 0 if has_classes else len(text) - text.count("*")
        self._wild[pieces[0], pieces[-1]].append(Pattern(text, number, piece, least, is_simple))
