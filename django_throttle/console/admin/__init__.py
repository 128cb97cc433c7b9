"""The admin's pages of the console."""

from django_throttle.console.admin.candidates import ThrottleCandidateAdmin
from django_throttle.console.admin.rules import ConsoleRuleAdmin, replace_admin_of_rules

__all__ = ["ConsoleRuleAdmin", "ThrottleCandidateAdmin"]

replace_admin_of_rules()
