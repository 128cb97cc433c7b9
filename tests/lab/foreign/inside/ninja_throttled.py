"""The settings of Ninja's demo project, and ours."""

from demo.settings import *  # noqa: F403
from demo.settings import INSTALLED_APPS, MIDDLEWARE
from presence import MIDDLEWARE as OURS
from presence import THROTTLE

INSTALLED_APPS = [*INSTALLED_APPS, "django_throttle"]
MIDDLEWARE = [*MIDDLEWARE, OURS]
DJANGO_THROTTLE = THROTTLE
