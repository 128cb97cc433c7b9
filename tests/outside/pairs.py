"""The pairs of Python and Django on which the wheel is tried: ``python -m tests.outside.pairs [<commit>]``.

Prints all of them, such as "3.13/6.1"; or the one of a commit, of those whose Python is on PATH. So each commit's gate
tries another, as its campaign plays other faults. Nothing is printed where no such Python is there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

PAIRS: Final = ("3.11/5.2", "3.12/5.2", "3.12/6.0", "3.12/6.1", "3.13/5.2", "3.13/6.0", "3.13/6.1")


def can_run(python: str) -> bool:
    """Whether this Python can make an environment; a name on PATH may have nothing behind it."""
    try:
        return (
            subprocess.run([f"python{python}", "-c", "import venv"], check=False, capture_output=True).returncode == 0
        )
    except FileNotFoundError:
        return False


def pair_of(commit: str, pairs: Sequence[str]) -> str:
    """The one of these pairs that a commit tries."""
    return pairs[int(commit[:7], 16) % len(pairs)] if pairs else ""


def main(*commit: str) -> None:
    if commit:
        here = {python for python in {pair.partition("/")[0] for pair in PAIRS} if can_run(python)}
        print(pair_of(*commit, [pair for pair in PAIRS if pair.partition("/")[0] in here]))
    else:
        print(*PAIRS)


if __name__ == "__main__":
    main(*sys.argv[1:])
