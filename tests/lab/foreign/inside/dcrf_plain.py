"""Settings for djangochannelsrestframework's tests, whose source distribution lacks them."""

SECRET_KEY = "not secret"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "TEST": {"NAME": "tests.sqlite3"}}}
INSTALLED_APPS = [
    "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "channels", "rest_framework",
    "tests",
]  # fmt: skip
MIDDLEWARE = []
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
