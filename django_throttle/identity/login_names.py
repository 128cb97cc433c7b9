"""Normal forms of login names, in which two spellings of a name are equal."""

from __future__ import annotations

import unicodedata
from typing import Final

from django.contrib.auth import get_user_model

#: Characters of the longest name that is read. Normalising a run of combining marks takes quadratic time.
MAX_NAME_LENGTH: Final = 512
#: Categories of combining marks and invisible characters, which most of MySQL's collations ignore.
IGNORED_CATEGORIES: Final = frozenset(("Mn", "Me", "Cf", "Cc"))


def normalize_name(value: object) -> str:
    """Return a name as Django's user model stores it. Raise ValueError if the value is not a name."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("a name is a text")
    typed = str(value).strip()
    if len(typed) > MAX_NAME_LENGTH:
        raise ValueError("a name is short")
    name = str(getattr(get_user_model(), "normalize_username", str)(typed)).strip()
    name.encode()  # no database takes half a character, nor a NUL
    if not name or "\0" in name:
        raise ValueError("a name is a text")
    return name


def fold(value: object) -> str:
    """Return a name without case, accents and characters that collations ignore. Raise ValueError if none is left."""
    decomposed = unicodedata.normalize("NFKD", normalize_name(value))
    kept = "".join(character for character in decomposed if unicodedata.category(character) not in IGNORED_CATEGORIES)
    name = unicodedata.normalize("NFKC", kept.casefold()).strip()
    if not name:
        raise ValueError("a name is a text")
    return name
