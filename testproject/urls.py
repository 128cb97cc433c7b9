"""Where everything is: the page, its API, the chat, and the admin."""

from __future__ import annotations

from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

from testproject import api, chat, reports, views

urlpatterns = [
    path("", views.page, name="page"),
    path("api/search", api.SearchView.as_view(), name="search"),
    path("api/orders", api.OrderView.as_view(), name="orders"),
    path("api/reports", reports.report, name="reports"),
    path("later/", include("django_throttle.urls")),
    path("api/budgets", views.budgets, name="budgets"),
    path("admin/", admin.site.urls),
    path("favicon.ico", RedirectView.as_view(url=static("testproject/icon.svg"))),  # the admin names none
]
websocket_urlpatterns = [
    path("ws/chat", chat.ChatConsumer.as_asgi()),  # type: ignore[arg-type]  # path() is typed for views only
    path("ws/chat/page", chat.PageChatConsumer.as_asgi()),  # type: ignore[arg-type]
]
