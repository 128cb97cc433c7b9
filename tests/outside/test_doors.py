"""Throttle classes of REST framework in a site of its own, which imports them while it is being imported itself."""

from __future__ import annotations

from pathlib import Path

from tests.outside.pages import page
from tests.outside.project import Project
from tests.servers import RedisServer, need_binary

PAGE = page("switching.rst")
(CLASSES,) = (block for block in PAGE if "REST_FRAMEWORK" in block.sets and "BurstThrottle" in block.code)
SETTINGS = """
INSTALLED_APPS += ["rest_framework", "django_throttle"]
DJANGO_THROTTLE = {"REDIS": "redis://localhost:6379/0", "DEADLINE": 5.0}
REST_FRAMEWORK = {}
"""
URLS = """
from django.urls import path
from rest_framework.response import Response
from rest_framework.views import APIView


class PlainView(APIView):
    throttle_scope = "search"

    def get(self, request):
        return Response({"found": []})


urlpatterns = [path("search", PlainView.as_view())]
"""


def test_the_default_classes_that_the_page_shows(site_python: Path, tmp_path: Path) -> None:
    need_binary("curl")
    with RedisServer() as redis:
        site = Project(site_python, tmp_path / "mysite", redis.url).start()
        site.append("mysite/settings.py", SETTINGS + CLASSES.code)
        site.append("mysite/urls.py", URLS, anew=True)
        site.write(*(block for block in PAGE if block.file == "mysite/throttles.py"))
        with site.served(["gunicorn sync"]) as ports:
            url = f"http://127.0.0.1:{ports['gunicorn sync']}/search?q=[1-11]"
            statuses = site.shell(f'curl -s -o /dev/null -w "%{{http_code}}\\n" "{url}"').split()
    assert statuses == ["200"] * 10 + ["429"]
