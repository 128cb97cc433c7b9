"""The admin's pages of rules, overrides and open connections."""

from django_throttle.admin.connections import ThrottleConnectionAdmin
from django_throttle.admin.history import ThrottleChangeAdmin
from django_throttle.admin.overrides import ThrottleOverrideAdmin
from django_throttle.admin.rules import ThrottleRuleAdmin

__all__ = ["ThrottleChangeAdmin", "ThrottleConnectionAdmin", "ThrottleOverrideAdmin", "ThrottleRuleAdmin"]
