"""The REST framework entry point: one decision for every rule that matches, and drop-ins for DRF's own throttles.

``RuleThrottle`` obeys the rulebook. ``AnonRateThrottle``, ``UserRateThrottle``, ``ScopedRateThrottle`` and
``SimpleRateThrottle`` obey DRF's settings, as the classes they replace do: each is a limit of its own, decided by
itself, and an allowed one stays charged when another refuses.
"""

from django_throttle.exceptions import needs_extra

with needs_extra("drf", "rest_framework"):
    from django_throttle.drf.drop_ins import AnonRateThrottle, ScopedRateThrottle, SimpleRateThrottle, UserRateThrottle
    from django_throttle.drf.rule_throttle import DecidedThrottle, RuleThrottle
    from django_throttle.http.drf_exceptions import LimiterUnavailable

StoreRateThrottle = SimpleRateThrottle  # its former name

__all__ = [
    "AnonRateThrottle", "DecidedThrottle", "LimiterUnavailable", "RuleThrottle", "ScopedRateThrottle",
    "SimpleRateThrottle", "UserRateThrottle",
]  # fmt: skip
