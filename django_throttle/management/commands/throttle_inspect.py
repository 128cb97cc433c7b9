"""manage.py throttle_inspect: print the open sockets of each process and of the idents with most of them."""

from __future__ import annotations

from typing import Final

from django.core.management.base import CommandParser

from django_throttle.connections.overview import Ident, SocketOverview, poll_overview
from django_throttle.core.texts import gettext_noop, translatable
from django_throttle.management import ShellCommand, add_most, remote_store
from django_throttle.models.ident_rows import row_texts
from django_throttle.translated import gettext, ngettext

ANSWER_SECONDS: Final = 2.0  # time for processes with sockets to answer


class Command(ShellCommand):
    """Command that prints the admin's page of open connections."""

    help = (
        "Print how many WebSockets are open in each process, and who has most of them. A socket, or a request in "
        "flight, holds one lease for each concurrency rule that matches it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("search", nargs="?", default="", help="part of an identity, address, scope or path")
        add_most(parser, "identities", 20)

    def handle(self, *, search: str, most: int, **options: object) -> None:
        store = remote_store(translatable("nobody but each process knows what it holds."))
        *_, overview = poll_overview(store, search, ANSWER_SECONDS)
        for line in _lines(overview, most):
            self.stdout.write(line)


def _lines(overview: SocketOverview, max_idents: int) -> list[str]:
    sockets, processes = _sockets(overview.open), len(overview.processes)
    lines = [ngettext("{sockets} in {count} process", "{sockets} in {count} processes", processes, sockets=sockets)]
    for process in overview.processes:
        if process.open is not None:
            answer = _sockets(process.open)
        elif process.leases:
            answer = gettext("has not answered")
        else:
            answer = gettext("has not answered (it has no sockets, or is too busy)")
        pattern = gettext_noop("{host} {pid}: {answer}; {leases:,} leases, of these and of requests in flight")
        lines.append("  " + gettext(pattern, host=process.host, pid=process.pid, answer=answer, leases=process.leases))
    idents = overview.idents[:max_idents]
    texts = row_texts(ident.shown for ident in idents)
    return lines + [_line(ident, texts.get(ident.shown, "")) for ident in idents]


def _sockets(number: int) -> str:
    return ngettext("{count:,} socket open", "{count:,} sockets open", number)


def _line(ident: Ident, row_text: str) -> str:
    processes = gettext("(in {count} processes)", count=ident.processes) if ident.processes > 1 else ""
    return "  ".join(filter(None, [f"{ident.open:>7,}", ident.shown, row_text, processes]))
