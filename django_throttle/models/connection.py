"""Open connections, as far as the admin is concerned: a name and permissions, and no table."""

from __future__ import annotations

from typing import Any

from django.db import models


class Nowhere(models.Manager["ThrottleConnection"]):
    """Finds nothing, and asks no database for it: dumpdata looks through every model there is."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class ThrottleConnection(models.Model):
    """One open WebSocket in the admin's log; what is open says each process (connections/overview.py)."""

    objects = Nowhere()

    class Meta:
        managed = False
        base_manager_name = "objects"
        verbose_name = "connection"
        default_permissions = ("view",)
        permissions = [("close_throttleconnection", "Can close connection")]

    name = ""

    def __str__(self) -> str:
        return self.name
