"""What an operator chooses from, in words."""

from __future__ import annotations

from typing import Final

ALGORITHM_LABELS: Final = (
    ("sliding_window", "Sliding window"),
    ("sliding_log", "Sliding log"),
    ("fixed_window", "Fixed window"),
    ("token_bucket", "Token bucket"),
    ("leaky_bucket", "Leaky bucket"),
    ("gcra", "GCRA"),
    ("concurrency", "Concurrency"),
)
ACTION_LABELS: Final = (("reject", "Refuse"), ("shadow", "Only record"), ("delay", "Delay"))
REFILL_LABELS: Final = (("continuous", "Evenly"), ("interval", "All at once"))
FAILURE_LABELS: Final = (
    ("local", "Count in each process"),
    ("allow", "Let through"),
    ("deny", "Refuse (503)"),
)
