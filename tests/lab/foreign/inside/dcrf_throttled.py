"""The same settings, and ours."""

from dcrf_plain import *  # noqa: F403
from dcrf_plain import INSTALLED_APPS
from presence import MIDDLEWARE as OURS
from presence import THROTTLE

INSTALLED_APPS = [*INSTALLED_APPS, "django_throttle"]
MIDDLEWARE = [OURS]
DJANGO_THROTTLE = THROTTLE
REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": ["django_throttle.drf.RuleThrottle"]}
