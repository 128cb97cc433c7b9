"""Translation of the package's texts to the current language, with its numbers, plurals and order of words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from django.utils import timezone, translation
from django.utils.formats import get_format

from django_throttle.core.texts import Text, sentences, text_of, translatable, translatable_plural


def translated(text: object) -> str:
    """Return a text, or the message of an error, in the current language. Return other values as text."""
    if isinstance(text, Exception):
        text = text_of(text)
    if not isinstance(text, Text) or _is_foreign():
        return str(text)
    args, values = text.values
    if text.plural:
        pattern = translation.ngettext(text.pattern, text.plural, text.number)
    else:
        pattern = translation.gettext(text.pattern) if text.pattern else ""
        if pattern == text.pattern and not (args or values):
            return str(text)  # English is in lower case in a sentence
    return pattern.format(*map(_shown, args), **{name: _shown(value) for name, value in values.items()})


def _is_foreign() -> bool:
    """Return True if these texts are not translated to the current language. Other apps may have some words."""
    return catalog_language() == "en" and not (translation.get_language() or "en").startswith("en")


def joined(parts: Sequence[str]) -> str:
    """Return the sentences as one text in the current language."""
    return translated(sentences(parts))


def gettext(pattern: str, /, **values: object) -> str:
    """Return the text of a pattern and its values in the current language."""
    return translated(translatable(pattern, **values))


def ngettext(singular: str, plural: str, number: int, /, **values: object) -> str:
    """Return the text for a number, which is also the value ``count`` by default, in the current language."""
    return translated(translatable_plural(singular, plural, number, **values))


def capitalised(text: str) -> str:
    """Return the text with its first letter in upper case, as in a label."""
    return text[:1].upper() + text[1:]


SEPARATORS: Final = {",": "THOUSAND_SEPARATOR", ".": "DECIMAL_SEPARATOR"}


def with_label(label: object, text: str) -> str:
    """Return the fault of a field after its label, unless the text contains the label."""
    name = capitalised(str(label))
    return text if name.casefold() in text.casefold() else gettext("{name}: {figure}", name=name, figure=text)


def local(moment: datetime) -> datetime:
    """Return a time in the current time zone."""
    try:
        return timezone.localtime(moment) if timezone.is_aware(moment) else moment
    except OverflowError:  # near the last date of Python
        return moment


def to_the_second(moment: datetime) -> str:
    """Return a time in the current time zone as text, such as "2030-01-31 18:00:00 UTC"."""
    return f"{local(moment):%Y-%m-%d %H:%M:%S %Z}".rstrip()


class _Number:
    """Number that is formatted with the separators of the current language, if its format has separators."""

    __slots__ = ("number",)

    def __init__(self, number: float) -> None:
        self.number = number

    def __format__(self, spec: str) -> str:
        text = format(self.number, spec)
        if spec in ("", "g"):
            return text
        language = catalog_language()
        separators = {sign: get_format(name, language) for sign, name in SEPARATORS.items()}
        separators["%"] = translation.pgettext("behind a number, with a no-break space where one is due", "%")
        return "".join(separators.get(character, character) for character in text)

    def __repr__(self) -> str:
        return repr(self.number)


def written(number: float, spec: str = ",") -> str:
    """Return a number in a format of Python, with the separators of the current language."""
    return format(_Number(number), spec)


def catalog_language() -> str:
    """Return the current language if these texts are translated to it, else "en"."""
    return translation.pgettext("language of these texts", "en")


def _shown(value: object) -> object:
    if isinstance(value, (Text, Exception)):
        return translated(value)
    return _Number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
