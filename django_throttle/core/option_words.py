"""Words for the events, units and options of a rule, used in descriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from django_throttle.core.key import AUDIENCE_WORDS
from django_throttle.core.scopes import split_scopes
from django_throttle.core.texts import Text, gettext_noop, listed, translatable, translatable_plural

# Nouns for events, used in lists of several.
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
# Numbers of events; "" is for several kinds of events, and for calls of a function.
CALLS_IN_WORDS: Final[dict[str, Callable[[int], Text]]] = {
    "": lambda count: translatable_plural("{count:,} call", "{count:,} calls", count),
    "request": lambda count: translatable_plural("{count:,} request", "{count:,} requests", count),
    "inflight": lambda count: translatable_plural("{count:,} request in flight", "{count:,} requests in flight", count),
    "connect": lambda count: translatable_plural(
        "{count:,} connection attempt", "{count:,} connection attempts", count
    ),
    "connection": lambda count: translatable_plural("{count:,} open WebSocket", "{count:,} open WebSockets", count),
    "message": lambda count: translatable_plural("{count:,} message", "{count:,} messages", count),
    "send": lambda count: translatable_plural("{count:,} message sent", "{count:,} messages sent", count),
    "publish": lambda count: translatable_plural("{count:,} publication", "{count:,} publications", count),
    "task": lambda count: translatable_plural("{count:,} task", "{count:,} tasks", count),
}
# Units of a rate: the label, and the pattern for an amount. All but the first two are measured, so they are known only
# when the call ends. "units" are spent by the code, or returned by the function in the option ``measure``.
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
MEAN: Final = "mean"  # reserve of a call: the mean cost of earlier calls


def scopes_in_words(names: tuple[str, ...]) -> str:
    """Describe the scopes of a rule: "everywhere" or their names, and the exclusions."""
    covered, excluded = split_scopes(names)
    place = translatable("everywhere") if "*" in covered else listed(list(dict.fromkeys(covered)))
    if not excluded:
        return place
    return translatable("{where} except {excluded}", where=place, excluded=listed(list(dict.fromkeys(excluded))))


def describe_scopes(names: tuple[str, ...]) -> str:
    """Describe the scopes of a rule within its description; empty for "everywhere"."""
    covered, excluded = split_scopes(names)
    if "*" in covered:
        return translatable("except on {scopes}", scopes=listed(list(dict.fromkeys(excluded)))) if excluded else ""
    is_shared = len(set(covered)) > 1 or any(sign in covered[0] for sign in "*?[")
    scopes = scopes_in_words(names)
    return (
        translatable("on {scopes} together", scopes=scopes) if is_shared else translatable("on {scopes}", scopes=scopes)
    )


def describe_methods(names: tuple[str, ...]) -> str:
    """Describe the counted HTTP methods."""
    implied = ["HEAD"] if "GET" in names and "HEAD" not in names else []
    return translatable("only {methods}", methods=listed([*names, *implied]))


def describe_audience(entries: tuple[str, ...]) -> str:
    """Describe the audience."""

    def in_words(entry: str) -> Text:
        if entry in AUDIENCE_WORDS:
            return translatable(AUDIENCE_WORDS[entry])
        kind, _, name = entry.partition(":")
        return translatable("the {kind} {name}", kind=translatable(kind), name=name)

    return translatable("only for {audience}", audience=listed(list(map(in_words, entries))))


def describe_cost(cost: int | str) -> str:
    """Describe the cost of a call."""
    if isinstance(cost, int):
        return translatable("each counting {cost:,}", cost=cost)
    return translatable("each counting as much as {function} says", function=cost)


def describe_reserve(reserve: int | str) -> str:
    """Describe the reserve of a call under a measured rule."""
    if isinstance(reserve, int):
        return translatable("{reserve:,} reserved beforehand", reserve=reserve)
    if reserve == MEAN:
        return translatable("the usual reserved beforehand")
    return translatable("as much reserved beforehand as {function} says", function=reserve)


def describe_statuses(statuses: tuple[int | str, ...]) -> str:
    """Describe the HTTP statuses that count."""
    return translatable("counting only answers of status {statuses}", statuses=listed(list(map(str, statuses))))


def describe_results(results: tuple[str, ...]) -> str:
    """Describe the results of requests that are refunded."""
    return translatable("not counting what ends as {results}", results=listed(list(results)))


def describe_warnings(shares: tuple[float, ...]) -> str:
    """Describe the shares of the limit that cause warnings."""
    percents = [translatable("{percent:,g} %", percent=share * 100) for share in shares]
    return translatable("warned of at {shares}", shares=listed(percents))


def percent_hint(number: float) -> Text:
    """Return the share for a number that was probably meant as a percentage, as the end of a message."""
    # No directive begins at the %, xgettext:no-python-format
    return translatable("; {percent:g} % is {share:g}", percent=number, share=number / 100)
