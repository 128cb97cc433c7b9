"""System checks: one number for each kind of mistake, by which it is silenced. The messages are specific."""

from django_throttle.checks import middleware_order, project, scopes, settings

__all__ = ["middleware_order", "project", "scopes", "settings"]
