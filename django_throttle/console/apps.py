"""App config of the console."""

from __future__ import annotations

from pathlib import Path

from django.apps import AppConfig
from django.utils.translation import gettext_lazy


class ConsoleConfig(AppConfig):
    """Adds recording, candidates and the costs of routes to django_throttle."""

    name = "django_throttle.console"
    label = "throttle_console"
    verbose_name = gettext_lazy("Throttling console")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_throttle import agent, observe, rulebook
        from django_throttle.console.models import Candidates, ThrottleCandidate
        from django_throttle.console.recording import flush, read, recorder
        from django_throttle.console.route_costs import costs_job
        from django_throttle.explain import refusals
        from django_throttle.rulebook.history import edits
        from django_throttle.stores.redis import scripts

        rulebook.add_source(Candidates())
        rulebook.announce_edits(ThrottleCandidate)
        edits.record_edits(ThrottleCandidate)
        observe.add_recorder(recorder)
        agent.add_store_job(flush.records_job)
        agent.add_store_job(costs_job)
        refusals.find_refusals = read.recent
        scripts.add_folder(Path(__file__).with_name("lua"))
