"""The demo site's settings; the environment says where Redis and the database are.

REDIS_URL  counts in that Redis; without it, in this process's memory
PREFIX     first part of every key there, so that two sites can share one Redis
DEADLINE   seconds that one decision may take; without it, as by default
DATABASE   path of the SQLite file, or postgresql://user:password@host:port/name, or mysql://…; without it, in memory
DEBUG      1 for Django's debug pages
CHANNEL_LAYER  "core" or "pubsub", the layer of channels_redis that the chat runs on; in memory without REDIS_URL
"""

from __future__ import annotations

import os
from typing import Any

from testproject.databases import database_settings

REDIS_URL = os.environ.get("REDIS_URL", "")
DEBUG = os.environ.get("DEBUG", "") == "1"
SECRET_KEY = "the-demo-keeps-no-secrets"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", "testserver"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "channels",
    "django_tasks_db",
    "django_throttle",
    "django_throttle.console",
    "testproject",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "testproject.urls"
ASGI_APPLICATION = "testproject.asgi.application"
STATIC_URL = "static/"
TIME_ZONE = "UTC"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {"default": database_settings(os.environ.get("DATABASE", ""))}
CACHES: dict[str, dict[str, Any]] = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
if REDIS_URL:
    CACHES["default"] = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": REDIS_URL}

LAYERS = {"core": "channels_redis.core.RedisChannelLayer", "pubsub": "channels_redis.pubsub.RedisPubSubChannelLayer"}
PREFIX = os.environ.get("PREFIX", "dt")
CHANNEL_LAYERS: dict[str, dict[str, Any]] = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
if REDIS_URL:
    CHANNEL_LAYERS["default"] = {
        "BACKEND": LAYERS[os.environ.get("CHANNEL_LAYER") or "core"],
        "CONFIG": {
            "hosts": [{"address": REDIS_URL, "socket_timeout": None}],  # else sockets end in the quiet: check W046
            "prefix": f"{PREFIX}-chat",
            "capacity": 10,  # few, so that what a full queue loses is soon seen; the pub/sub layer knows none
        },
    }

TASKS: dict[str, Any] = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
}

DJANGO_THROTTLE: dict[str, Any] = {
    "PREFIX": PREFIX,
    # What holds until an operator says otherwise: a rule of the same name in the admin wins.
    "RULES": {
        "api": {
            "rate": "100/min",
            "scopes": ["search", "chat"],
            "events": ["request", "message"],
            "key": "user",
        },
        "sockets": {
            "limit": 5,
            "algorithm": "concurrency",
            "scopes": ["chat"],
            "events": ["connection"],
            "key": "user_or_ip",
        },
    },
}
if REDIS_URL:
    DJANGO_THROTTLE["REDIS"] = "default"
if "DEADLINE" in os.environ:
    DJANGO_THROTTLE["DEADLINE"] = float(os.environ["DEADLINE"])
