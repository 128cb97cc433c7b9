"""Rules in the admin: a list to oversee and edit them, a form that says in words what a rule means; and connections."""

from django_throttle.admin.connections import ThrottleConnectionAdmin
from django_throttle.admin.overrides import ThrottleOverrideAdmin
from django_throttle.admin.rules import ThrottleRuleAdmin

__all__ = ["ThrottleConnectionAdmin", "ThrottleOverrideAdmin", "ThrottleRuleAdmin"]
