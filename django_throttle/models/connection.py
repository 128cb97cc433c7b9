"""A model without a table, so that the admin has a page and permissions of open connections."""

from __future__ import annotations

from typing import Any

from django.db import models


class Nowhere(models.Manager["ThrottleConnection"]):
    """Finds nothing without a query, for dumpdata, which reads every model."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class ThrottleConnection(models.Model):
    """One open WebSocket in the admin's log; the page asks the processes (connections/overview.py)."""

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
