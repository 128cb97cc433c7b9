"""The status page of work that is done later: ``path("later/", include("django_throttle.urls"))``."""

from __future__ import annotations

from typing import Final

from django.urls import path

from django_throttle.http.deferred import status_page

app_name: Final = "django_throttle"
urlpatterns: Final = [path("<str:token>", status_page, name="later")]
