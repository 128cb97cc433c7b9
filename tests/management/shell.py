"""A command as it is typed in a shell, and what it prints."""

import io
from typing import Any

from django.core.management import call_command


def run(line: str, *words: str, **options: Any) -> str:
    said = io.StringIO()
    call_command(*line.split(), *words, stdout=said, stderr=said, no_color=True, **options)
    return said.getvalue()
