"""The pairs of Python and Django on which the wheel is tried: ``python -m tests.outside.pairs [--installed]``.

Prints all of them, such as "3.13/6.1", from the oldest to the newest; with ``--installed`` those whose Python is on the
machine.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

PAIRS: Final = ("3.11/5.2", "3.12/5.2", "3.12/6.0", "3.12/6.1", "3.13/5.2", "3.13/6.0", "3.13/6.1")


def can_run(python: str) -> bool:
    """Return whether this Python can make an environment; a name on PATH may have nothing behind it."""
    try:
        done = subprocess.run([f"python{python}", "-c", "import venv"], check=False, capture_output=True)
        return done.returncode == 0
    except FileNotFoundError:
        return False


def main(*options: str) -> None:
    pairs = PAIRS
    if "--installed" in options:
        installed = {python for python in {pair.partition("/")[0] for pair in PAIRS} if can_run(python)}
        pairs = tuple(pair for pair in PAIRS if pair.partition("/")[0] in installed)
    print(*pairs)


if __name__ == "__main__":
    main(*sys.argv[1:])
