"""The configuration of the Django app."""

from __future__ import annotations

from django.apps import AppConfig, apps
from django.utils.translation import gettext_lazy


class ThrottleConfig(AppConfig):
    """Connects the signals of edited rules and of database connections, registers the checks; uses no database."""

    name = "django_throttle"
    verbose_name = gettext_lazy("Throttling")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_throttle import agent, checks  # noqa: F401  (they register themselves)
        from django_throttle.costs import meter
        from django_throttle.later import task_slots  # noqa: F401
        from django_throttle.rulebook import current_rules
        from django_throttle.rulebook.history import edits, ended, from_settings  # noqa: F401
        from django_throttle.runtime import shutdown
        from django_throttle.stores.redis.addresses import load_cache_backend
        from django_throttle.websockets.groups import member_reports

        for model in ("django_throttle.ThrottleRule", "django_throttle.ThrottleOverride"):
            current_rules.announce_edits(model)
            edits.record_edits(model)
        load_cache_backend()
        agent.add_store_job(member_reports)
        meter.install()
        shutdown.watch()
        if apps.is_installed("rest_framework"):
            from django_throttle.drf import rule_throttle

            rule_throttle.connect()
