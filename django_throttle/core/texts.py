"""Translatable texts of the core: English text that keeps its pattern and its values.

``make messages`` collects the patterns by the names of these functions. ``django_throttle.translated`` translates a
text when it is displayed. Django's ``gettext_lazy`` would need settings, and log lines are in English.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

Values = tuple[Sequence[object], Mapping[str, object]]  # positional and named


class Text(str):
    """A text in English, with its pattern and the values in it, which may be texts too."""

    __slots__ = ("number", "pattern", "plural", "values")
    pattern: str
    plural: str  #: pattern for another number than 1; empty for a text without a number
    number: int
    values: Values


def gettext_noop(text: str) -> str:
    """Return the text; mark it as a pattern for ``make messages``."""
    return text


def translatable(pattern: str, /, *args: object, **values: object) -> Text:
    """Return the text that ``pattern.format`` makes of these values."""
    return _text(pattern, (args, values))


def translatable_plural(singular: str, plural: str, number: int, /, **values: object) -> Text:
    """Return the text of the pattern for this number, which is also the value ``count`` by default."""
    return _text(singular, ((), {"count": number, **values}), plural, number)


def _text(pattern: str, values: Values, plural: str = "", number: int = 0) -> Text:
    english = plural if plural and number != 1 else pattern
    text = Text(english.format(*values[0], **values[1]))
    text.pattern, text.plural, text.number, text.values = pattern, plural, number, values
    return text


def in_sentence(label: str) -> Text:
    """Return a label for use within a sentence; in English it begins in lower case."""
    lowered = Text(label if label.isupper() else label.lower())
    lowered.pattern, lowered.plural, lowered.number, lowered.values = label, "", 0, ((), {})
    return lowered


def relabelled(text: str, name: str, label: str) -> str:
    """Return the text with a label in place of an option's name, which may follow a label in brackets."""
    if not isinstance(text, Text):
        return text
    args, values = text.values
    relabelled_values = {
        key: label if str(value) == name or str(value).endswith(f" ({name})") else value
        for key, value in values.items()
    }
    return _text(text.pattern, (args, relabelled_values), text.plural, text.number)


def text_of(error: Exception) -> str:
    """Return the message of an error, as a Text if the error was raised with a Text."""
    return error.args[0] if error.args and isinstance(error.args[0], Text) else str(error)


def with_commas(parts: Sequence[str]) -> str:
    """Join the parts that are not empty with commas."""
    return _joined(gettext_noop("{before}, {after}"), parts)


def listed(words: Sequence[str]) -> str:
    """Join words as a list: "a, b and c"."""
    return _joined(gettext_noop("{before} and {after}"), [with_commas(words[:-1]), *words[-1:]])


def alternatives(words: Sequence[str]) -> str:
    """Join words as alternatives: "a or b or c"."""
    return _joined(gettext_noop("{before} or {after}"), words)


def sentences(parts: Sequence[str]) -> str:
    """Join the sentences that are not empty."""
    return _joined(gettext_noop("{before} {after}"), parts)


def _joined(pattern: str, parts: Sequence[str]) -> str:
    filled = [part for part in parts if part]
    return reduce(lambda before, after: translatable(pattern, before=before, after=after), filled) if filled else ""
