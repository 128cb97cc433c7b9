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
    ("damper", "Damper"),
)
ACTION_LABELS: Final = (("reject", "Refuse"), ("shadow", "Only record"), ("delay", "Delay"))
AT_LIMIT_LABELS: Final = (
    ("reject", "Refuse the newcomer"),
    ("evict_oldest", "Close the oldest"),
    ("evict_idle", "Close the one silent for longest"),
)
REFILL_LABELS: Final = (("continuous", "Evenly"), ("interval", "All at once"))
UNIT_LABELS: Final = (("calls", "Calls"), ("bytes", "Bytes that calls carry"))
ESTIMATOR_LABELS: Final = (("fast", "Fast"), ("average", "Average of 24 seconds"))
FAILURE_LABELS: Final = (
    ("local", "Count in each process"),
    ("allow", "Let through"),
    ("deny", "Refuse (503)"),
)
