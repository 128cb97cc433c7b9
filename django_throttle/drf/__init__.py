"""REST framework's entry point: ``RuleThrottle`` for the rules, and drop-ins for DRF's own throttles.

``RuleThrottle`` applies all rules that match in one decision. ``AnonRateThrottle``, ``UserRateThrottle``,
``ScopedRateThrottle`` and ``SimpleRateThrottle`` obey DRF's settings, like the classes that they replace. Each is
decided by itself, and its charge stays if another throttle refuses.
"""

from django_throttle.exceptions import needs_extra

with needs_extra("drf", "rest_framework"):
    from django_throttle.drf.drop_ins import AnonRateThrottle, ScopedRateThrottle, SimpleRateThrottle, UserRateThrottle
    from django_throttle.drf.rule_throttle import DecidedThrottle, RuleThrottle
    from django_throttle.http.drf_exceptions import LimiterUnavailable

StoreRateThrottle = SimpleRateThrottle  # former name

__all__ = [
    "AnonRateThrottle", "DecidedThrottle", "LimiterUnavailable", "RuleThrottle", "ScopedRateThrottle",
    "SimpleRateThrottle", "UserRateThrottle",
]  # fmt: skip
