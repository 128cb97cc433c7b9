"""System checks: one number for each way in which the settings or the rules can be wrong.

E001–E006 are about the dictionary and its rules, E01x about texts and choices, E02x about numbers, E03x about
what must fit together; W00x are things that work but should be known.
"""

from django_throttle.checks import middleware_order, project, scopes, settings

__all__ = ["middleware_order", "project", "scopes", "settings"]
