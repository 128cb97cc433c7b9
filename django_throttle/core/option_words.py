"""What a description says of the events, units and options of a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from django_throttle.core.key import AUDIENCE_WORDS
from django_throttle.core.scopes import split_scopes
from django_throttle.core.texts import Text, gettext_lazy, gettext_noop, listed, ngettext_lazy

# What happens, as it is called in a list of different kinds.
NOUNS: Final = {
    "request": gettext_noop("HTTP requests"),
    "inflight": gettext_noop("HTTP requests in flight"),
    "connect": gettext_noop("WebSocket connection attempts"),
    "connection": gettext_noop("open WebSockets"),
    "message": gettext_noop("WebSocket messages"),
    "send": gettext_noop("WebSocket messages sent"),
    "publish": gettext_noop("publications"),
    "task": gettext_noop("tasks"),
}
# So many of what happens; "" is of several kinds, or a call of a function.
COUNTED: Final[dict[str, Callable[[int], Text]]] = {
    "": lambda count: ngettext_lazy("{count:,} call", "{count:,} calls", count),
    "request": lambda count: ngettext_lazy("{count:,} request", "{count:,} requests", count),
    "inflight": lambda count: ngettext_lazy("{count:,} request in flight", "{count:,} requests in flight", count),
    "connect": lambda count: ngettext_lazy("{count:,} connection attempt", "{count:,} connection attempts", count),
    "connection": lambda count: ngettext_lazy("{count:,} open WebSocket", "{count:,} open WebSockets", count),
    "message": lambda count: ngettext_lazy("{count:,} message", "{count:,} messages", count),
    "send": lambda count: ngettext_lazy("{count:,} message sent", "{count:,} messages sent", count),
    "publish": lambda count: ngettext_lazy("{count:,} publication", "{count:,} publications", count),
    "task": lambda count: ngettext_lazy("{count:,} task", "{count:,} tasks", count),
}
# What a rate may count, and so much of it in words. All but the first two are measured, and so known only
# when the call is over; "units" are what the code spends, or what the option ``measure`` says.
UNITS: Final = {
    "calls": ("Calls", ""),
    "bytes": ("Bytes that calls carry", gettext_noop("{count:,} bytes of {events}")),
    "queries": ("Database queries", gettext_noop("{count:,} database queries of {events}")),
    "rows": ("Rows read from databases", gettext_noop("{count:,} rows read by {events}")),
    "db_ms": ("Milliseconds of database time", gettext_noop("{count:,} milliseconds of database time of {events}")),
    "wall_ms": ("Milliseconds until the answer", gettext_noop("{count:,} milliseconds of {events}")),
    "cpu_ms": ("Milliseconds of processor time", gettext_noop("{count:,} milliseconds of processor time of {events}")),
    "response_bytes": ("Bytes of answers", gettext_noop("{count:,} bytes of answers to {events}")),
    "units": ("Units that the code spends", gettext_noop("{count:,} units of {events}")),
}
MEAN: Final = "mean"  # of what earlier calls came to


def say_scopes(names: tuple[str, ...]) -> str:
    """Where a rule applies: "everywhere", or the scopes' names, and where it does not."""
    covered, excluded = split_scopes(names)
    where = gettext_lazy("everywhere") if "*" in covered else listed(list(dict.fromkeys(covered)))
    if not excluded:
        return where
    return gettext_lazy("{where} except {excluded}", where=where, excluded=listed(list(dict.fromkeys(excluded))))


def on_scopes(names: tuple[str, ...]) -> str:
    """Where it applies, unless that is everywhere."""
    covered, excluded = split_scopes(names)
    if "*" in covered:
        return gettext_lazy("except on {scopes}", scopes=listed(list(dict.fromkeys(excluded)))) if excluded else ""
    several = len(set(covered)) > 1 or any(sign in covered[0] for sign in "*?[")
    scopes = say_scopes(names)
    return (
        gettext_lazy("on {scopes} together", scopes=scopes) if several else gettext_lazy("on {scopes}", scopes=scopes)
    )


def only_methods(names: tuple[str, ...]) -> str:
    """Which HTTP methods it counts."""
    also = ["HEAD"] if "GET" in names and "HEAD" not in names else []  # GET is answered for HEAD too
    return gettext_lazy("only {methods}", methods=listed([*names, *also]))


def only_for(entries: tuple[str, ...]) -> str:
    """To which audience it applies."""

    def said(entry: str) -> Text:
        if entry in AUDIENCE_WORDS:
            return gettext_lazy(AUDIENCE_WORDS[entry])
        kind, _, name = entry.partition(":")
        return gettext_lazy("the {kind} {name}", kind=gettext_lazy(kind), name=name)

    return gettext_lazy("only for {audience}", audience=listed(list(map(said, entries))))


def each_counting(cost: int | str) -> str:
    """What a call costs."""
    if isinstance(cost, int):
        return gettext_lazy("each counting {cost:,}", cost=cost)
    return gettext_lazy("each counting as much as {function} says", function=cost)


def reserving(reserve: int | str) -> str:
    """How much is reserved beforehand."""
    if isinstance(reserve, int):
        return gettext_lazy("{reserve:,} reserved beforehand", reserve=reserve)
    if reserve == MEAN:
        return gettext_lazy("the usual reserved beforehand")
    return gettext_lazy("as much reserved beforehand as {function} says", function=reserve)


def counting_only(statuses: tuple[int | str, ...]) -> str:
    """Which answers count."""
    return gettext_lazy("counting only answers of status {statuses}", statuses=listed(list(map(str, statuses))))


def not_counting(results: tuple[str, ...]) -> str:
    """Which requests count for nothing."""
    return gettext_lazy("not counting what ends as {results}", results=listed(list(results)))


def warned_of(shares: tuple[float, ...]) -> str:
    """At which shares of the limit the site is told."""
    percents = [gettext_lazy("{percent:,g} %", percent=share * 100) for share in shares]
    return gettext_lazy("warned of at {shares}", shares=listed(percents))


def in_percent(number: float) -> Text:
    """What a share is that was written as a percentage, as the end of a message."""
    # No directive begins at the %, xgettext:no-python-format
    return gettext_lazy("; {percent:g} % is {share:g}", percent=number, share=number / 100)
