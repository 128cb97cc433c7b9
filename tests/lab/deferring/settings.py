"""The settings of a site whose one view is deferred. RATE says how, RAN is the file to which its task writes."""

import os

from testproject.settings import *  # noqa: F403

ROOT_URLCONF = "tests.lab.deferring.site"
ALLOWED_HOSTS = ["testserver"]
DJANGO_THROTTLE = {
    "REDIS": "default",
    "DATABASE_RULES": False,
    "DEADLINE": 5.0,
    "RULES": {
        "work": {
            "rate": os.environ.get("RATE", "10/s"), "algorithm": "leaky_bucket", "action": "defer",
            "max_queue": 100_000, "key": "everyone", "events": ["request"],
        }
    },
}  # fmt: skip
