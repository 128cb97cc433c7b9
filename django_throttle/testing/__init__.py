"""What tests of a site need: a clock that stands still, rules for one test, and a look at what was refused."""

from django_throttle.testing.assertions import assert_throttled
from django_throttle.testing.rules import FrozenClock, override_rules, use_up

__all__ = ["FrozenClock", "assert_throttled", "override_rules", "use_up"]
