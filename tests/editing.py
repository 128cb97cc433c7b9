"""The demo site's settings with the rules in RULES, for whoever edits them beside servers that run."""

import json
import os

from testproject.settings import *  # noqa: F403

DJANGO_THROTTLE = {**DJANGO_THROTTLE, "RULES": json.loads(os.environ["RULES"])}  # noqa: F405
