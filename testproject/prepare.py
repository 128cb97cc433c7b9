"""Make the demo's database: tables, example rules, and a login for the admin. ``python -m testproject.prepare``."""

from __future__ import annotations

import os
from pathlib import Path

import django
from django.core.management import call_command

RULES = Path(__file__).with_name("rules.json")
LOGIN = "admin"
PASSWORD = "admin"


def main() -> None:
    """Everything that must be there before the first request."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    # Only after the setup: a model can't be imported before it.
    from django.contrib.auth import get_user_model

    call_command("migrate", verbosity=0)
    call_command("throttle_rules", "import", str(RULES))
    get_user_model().objects.create_superuser(LOGIN, password=PASSWORD)


if __name__ == "__main__":
    main()
