"""Django's own settings for its suite, and ours."""

from presence import MIDDLEWARE, THROTTLE
from test_sqlite import *  # noqa: F403

import __main__ as runtests

# runtests.py gives these to the settings.
runtests.ALWAYS_INSTALLED_APPS.append("django_throttle")
runtests.ALWAYS_MIDDLEWARE.append(MIDDLEWARE)

DJANGO_THROTTLE = THROTTLE
TEST_RUNNER = "recording_runner.Runner"
