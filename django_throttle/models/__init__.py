"""What operators edit in the admin."""

from __future__ import annotations

from django_throttle.models.rule import ThrottleRule

__all__ = ["ThrottleRule"]
