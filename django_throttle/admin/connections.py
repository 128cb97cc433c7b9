"""The admin's page of open connections of all processes, which can be closed there."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext
from django.views.decorators.http import require_http_methods, require_POST

from django_throttle.admin.page import ReadOnlyAdmin, shown_page
from django_throttle.connections.overview import (
    Ident,
    ListedSocket,
    SocketOverview,
    clear_overviews,
    get_overview,
    poll_overview,
)
from django_throttle.core.control_messages import CLOSE, CLOSED, ControlMessage
from django_throttle.exceptions import InvalidSetting, StoreError
from django_throttle.models import ThrottleConnection
from django_throttle.models.ident_rows import row_texts
from django_throttle.observe.reports import printable
from django_throttle.stores import get_store
from django_throttle.translated import translated

URL_NAME: Final = "django_throttle_throttleconnection"
PAGE_ROWS: Final = 200  # rows of a page
MAX_IDENTS: Final = 50
MAX_SEARCH_CHARS: Final = 100
ANSWER_SECONDS: Final = 1.5  # until every process has listed what it holds
NO_OVERVIEW: Final = SocketOverview((), (), (), 0)


@admin.register(ThrottleConnection)
class ThrottleConnectionAdmin(ReadOnlyAdmin):
    """Page of open connections. Processes list them on request; there is no table."""

    def get_urls(self) -> list[URLPattern]:
        view, close = require_http_methods(["GET", "HEAD"])(self.changelist_view), require_POST(self.close_view)
        return [
            path("", self.admin_site.admin_view(view), name=f"{URL_NAME}_changelist"),
            path("close/", self.admin_site.admin_view(close), name=f"{URL_NAME}_close"),
        ]

    def has_close_permission(self, request: HttpRequest) -> bool:
        """Return True if the user may close connections. The page must be visible to the user, too."""
        return self.has_view_permission(request) and request.user.has_perm("django_throttle.close_throttleconnection")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, object] | None = None) -> HttpResponse:
        """Return the page, or with ``?part`` the rows that it loads every two seconds."""
        search = _search_text(request.GET.get("q"))
        about = {
            "close_url": reverse(f"{self.admin_site.name}:{URL_NAME}_close"),
            "search": search,
            "may_close": self.has_close_permission(request),
            **(extra_context or {}),
        }
        name = f"django_throttle/throttleconnection/{'rows' if 'part' in request.GET else 'page'}"
        return shown_page(
            self, request, name, gettext("Open connections"), lambda: {**_overview_context(request, search), **about}
        )

    def close_view(self, request: HttpRequest) -> HttpResponse:
        """Close a listed connection, or all listed connections of an ident."""
        if not self.has_close_permission(request):
            raise PermissionDenied
        search = _search_text(request.POST.get("q"))
        try:
            message = self._send_close(request, search)
        except (StoreError, InvalidSetting) as error:
            message = gettext("Redis does not answer: {error}").format(error=translated(error))
            self.message_user(request, message, messages.ERROR)
        else:
            level = messages.SUCCESS if message else messages.WARNING
            self.message_user(request, message or gettext("It has gone already."), level)
        query = f"?{urlencode({'q': search})}" if search else ""
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:{URL_NAME}_changelist") + query)

    def _send_close(self, request: HttpRequest, search: str) -> str:
        """Close the connections, and return a sentence about it. Return "" if they are not listed."""
        listed = _listed(search, **{name: request.POST.get(name, "") for name in ("uid", "socket", "tag")})
        if isinstance(listed, ListedSocket):
            control_message = ControlMessage(CLOSE, uid=listed.uid, socket=listed.id, reason=CLOSED)
            where = f"{listed.scope}{listed.path and ', ' + listed.path}"
            name = printable(f"{', '.join(listed.idents) or 'nobody'} ({where})")
            message = gettext("The connection of {name} is being closed.").format(name=name)
        elif isinstance(listed, Ident):
            control_message, name = (
                ControlMessage(CLOSE, ident_hash=listed.ident_hash, reason=CLOSED),
                printable(listed.shown),
            )
            message = gettext("All {open} connections of {name} are being closed.").format(open=listed.open, name=name)
        else:
            return ""
        get_store().control.dispatch((control_message,))
        clear_overviews()
        row = ThrottleConnection()
        row.name = name[:200]
        self.log_change(request, row, "Closed.")
        return message


def _overview_context(request: HttpRequest, search: str) -> dict[str, object]:
    try:
        overview, failure = get_overview(get_store(), search), ""
    except (StoreError, InvalidSetting) as error:
        overview, failure = NO_OVERVIEW, translated(error)
    idents, sockets = overview.idents[:MAX_IDENTS], overview.connections[:PAGE_ROWS]
    shown = [*(ident.shown for ident in idents), *(name for socket in sockets for name in socket.idents)]
    texts = row_texts(shown, request.user)
    return {
        "overview": overview,
        "idents": [(ident, texts.get(ident.shown, "")) for ident in idents],
        "connections": [
            {
                "socket": socket,
                "idents": [(name, texts.get(name, "")) for name in socket.idents],
                "age": _in_words(socket.age),
                "silent": _in_words(socket.silent),
            }
            for socket in sockets
        ],
        "hidden": max(0, overview.open - min(PAGE_ROWS, len(overview.connections))),
        "failure": failure,
    }


def _listed(search: str, uid: str, socket: str, tag: str) -> ListedSocket | Ident | None:
    """Return the listed socket or ident. Wait for the answers of processes."""
    for overview in poll_overview(get_store(), search, ANSWER_SECONDS):
        for row in overview.connections:
            if socket and (row.uid, row.id) == (uid, socket):
                return row
        for ident in overview.idents:
            if tag and ident.ident_hash == tag:
                return ident
    return None


def _in_words(seconds: float) -> str:
    """Return seconds in words, such as "5 s", "12 min" or "3 h 5 min"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min" if minutes else f"{rest} s"


def _search_text(typed: str | None) -> str:
    return (typed or "").strip()[:MAX_SEARCH_CHARS]
