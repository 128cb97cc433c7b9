"""The door of what is published to the groups of a channel layer: it charges each publication for whom it reaches.

``django_throttle.channels`` has the functions to publish with; ``group`` is the key of rules that count by group.
"""

from django_throttle.publishing.sending import group

__all__ = ["group"]
