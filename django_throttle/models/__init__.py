"""The models: rules, overrides, and open connections for the admin."""

from __future__ import annotations

from django_throttle.models.connection import ThrottleConnection
from django_throttle.models.override import ThrottleOverride
from django_throttle.models.rule import ThrottleRule

__all__ = ["ThrottleConnection", "ThrottleOverride", "ThrottleRule"]
