"""Models of rules, overrides, their history, and entries of the admin's index, which have no table."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy

from django_throttle.models.change import ThrottleChange
from django_throttle.models.override import ThrottleOverride
from django_throttle.models.rule import ThrottleRule

__all__ = ["ThrottleChange", "ThrottleConnection", "ThrottleExplanation", "ThrottleOverride", "ThrottleRule"]


class EmptyManager(models.Manager["ThrottleConnection"]):
    """Manager without rows, because dumpdata reads every model."""

    def get_queryset(self) -> models.QuerySet[ThrottleConnection]:
        return super().get_queryset().none()


class ThrottleConnection(models.Model):
    """Open WebSocket, for permissions and the admin's log. See ``connections/overview.py`` for the data."""

    objects = EmptyManager()

    class Meta:
        managed = False
        base_manager_name = "objects"
        verbose_name = gettext_lazy("connection")
        verbose_name_plural = gettext_lazy("connections")
        default_permissions = ("view",)
        permissions = [("close_throttleconnection", "Can close connection")]

    name = ""

    def __str__(self) -> str:
        return self.name


class ThrottleExplanation(ThrottleRule):
    """Entry of the page that explains refusals in the admin's index."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = verbose_name_plural = gettext_lazy("Why is a caller refused?")
