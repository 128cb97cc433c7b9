"""The configuration of the console, a Django app of its own."""

from __future__ import annotations

from pathlib import Path

from django.apps import AppConfig
from django.utils.translation import gettext_lazy


class ConsoleConfig(AppConfig):
    """Plugs recording, candidates and the costs of routes into django_throttle."""

    name = "django_throttle.console"
    label = "throttle_console"
    verbose_name = gettext_lazy("Throttling console")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_throttle.stores.redis import scripts

        scripts.folders.append(Path(__file__).with_name("lua"))
