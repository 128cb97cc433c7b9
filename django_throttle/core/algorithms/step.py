"""What an algorithm is given and what it says."""

from __future__ import annotations

from typing import Final, NamedTuple

State = tuple[int, ...]
NEVER: Final = -1


class Step(NamedTuple):
    """What an algorithm says; times in microseconds from now.

    ``remaining`` and ``reset`` are before the charge, ``charged_reset`` after it. ``retry`` is 0 when
    the cost fits, NEVER when it cannot. ``kept`` is a state to store although the call is refused:
    a counted denial, or a repaired clock.
    """

    remaining: int
    retry: int
    reset: int
    charged_reset: int
    charged: State | None
    kept: State | None
