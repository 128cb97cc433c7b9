"""The part of a rule's form that tries it before it is saved, on the calls that were recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin import ModelAdmin
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy

from django_throttle.admin.page import shown_page
from django_throttle.console.admin.overview import HEIGHT, WIDTH, bars
from django_throttle.console.backtest import (
    EVENTS,
    SPANS,
    RecordedCaller,
    RecordedCalls,
    Replayed,
    recorded_calls,
    replay,
)
from django_throttle.core import Rule
from django_throttle.core.key import EVERYONE
from django_throttle.exceptions import InvalidSetting, StoreError
from django_throttle.models import ThrottleRule
from django_throttle.models.ident_rows import row_texts
from django_throttle.translated import translated, written

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractUser, AnonymousUser

MAX_AFFECTED: Final = 10
BARS: Final = {"hour": 60, "day": 48}
NAMES: Final = {"live": gettext_lazy("live rule"), "edited": gettext_lazy("edited rule")}


def trial_part(
    rules: ModelAdmin[ThrottleRule], request: HttpRequest, read_form: Callable[[], Mapping[str, object]]
) -> HttpResponse:
    """Return the results of a trial, for staff who may view rules.

    ``read_form`` returns the rules ``live`` and ``edited`` of the form, each of which may be None, and its ``errors``.
    """
    span = "day" if request.POST.get("span") == "day" else "hour"
    return shown_page(
        rules, request, "throttle_console/trial", "", lambda: _trial_context(span, read_form(), request.user)
    )


def _trial_context(span: str, form: Mapping[str, Any], user: AbstractUser | AnonymousUser) -> dict[str, object]:
    """Return the context of the template, with what both rules refuse."""
    if form["errors"]:
        return {"errors": form["errors"]}
    end = timezone.now()
    try:
        recorded = recorded_calls(SPANS[span])
    except (StoreError, InvalidSetting) as error:
        return {"failure": translated(error)}
    if not recorded.calls:
        return {"span": span, "is_empty": True, "there": translated(recorded.what_is_there)}
    both = {side: form[side] for side in NAMES}
    rules = {
        side: replace(rule, enabled=True) for side, rule in both.items() if rule and recorded.why_not(rule) is None
    }
    results = {
        side: replay([rule], recorded.calls, caller_type=RecordedCaller)[rule.name] for side, rule in rules.items()
    }
    return {
        "span": span,
        "calls": len(recorded.calls),
        "cut": recorded.cut,
        "percent": written(recorded.share, ".2%"),
        "share": recorded.share,
        "remarks": dict.fromkeys(text for side, rule in both.items() for text in _remarks(side, rule, recorded)),
        "sides": [_side(side, result, recorded) for side, result in results.items()],
        "affected": _affected(results, user),
        "pictures": _pictures(results, span, end.timestamp()),
        "begins": end - timedelta(hours=SPANS[span]),
        "ends": end,
        "width": WIDTH,
        "height": HEIGHT,
    }


def _remarks(side: str, rule: Rule | None, recorded: RecordedCalls) -> list[str]:
    """Return sentences that explain the numbers of a rule."""
    if rule is None:
        is_live = side == "live"
        return [gettext("There is no live rule to compare with.") if is_live else gettext("You may not edit rules.")]
    if why := recorded.why_not(rule):
        pattern = gettext("The {rule} cannot be tried on what was recorded: {why}.")
        return [pattern.format(rule=NAMES[side], why=translated(why))]
    remarks = {
        gettext("The {rule} is switched off: this is what it would refuse if it were on."): not rule.enabled,
        gettext("The {rule} only records: nobody is told of these refusals."): rule.is_shadow,
        gettext("Requests are replayed, other events are not."): bool({*rule.events} - {*EVENTS}),
    }
    return [text.format(rule=NAMES[side]) for text, applies in remarks.items() if applies]


def _side(side: str, replayed: Replayed, recorded: RecordedCalls) -> dict[str, object]:
    return {
        "name": NAMES[side],
        "replayed": replayed,
        "refused": _about(recorded.estimate(replayed)),
        "idents": _about(recorded.estimate_idents(replayed)),
    }


def _about(estimate: tuple[int, int, int]) -> str:
    likely, low, high = estimate
    return gettext("{likely} ({low} to {high})").format(likely=written(likely), low=written(low), high=written(high))


def _affected(results: Mapping[str, Replayed], user: AbstractUser | AnonymousUser) -> list[dict[str, object]]:
    """Return the idents for which the edit changes most, then those that are refused most."""
    idents = {ident for replayed in results.values() for ident in replayed.idents}
    rows = [(ident, [replayed.idents[ident] for replayed in results.values()]) for ident in idents]
    rows.sort(key=lambda row: (min(row[1]) - max(row[1]), -sum(row[1]), row[0]))
    texts = row_texts([ident for ident, _ in rows[:MAX_AFFECTED]], user)
    return [
        {"ident": ident, "row_text": texts.get(ident, ""), "is_ident": ident != EVERYONE, "numbers": numbers}
        for ident, numbers in rows[:MAX_AFFECTED]
    ]


def _pictures(results: Mapping[str, Replayed], span: str, end: float) -> list[dict[str, object]]:
    """Return bar charts of the refused calls of each rule, to one scale."""
    number, seconds = BARS[span], SPANS[span] * 3600
    heights = {side: [0] * number for side in results}
    for side, replayed in results.items():
        for at in replayed.times:
            heights[side][max(0, min(number - 1, int((at - end + seconds) / seconds * number)))] += 1
    most = max((max(bars_of_side) for bars_of_side in heights.values()), default=0)
    return [
        {
            "name": NAMES[side],
            "bars": bars([(0, height) for height in bars_of_side], most),
            "label": gettext("{rule}: {sum} refused, {most} at most in one of {number} bars").format(
                rule=NAMES[side], sum=written(sum(bars_of_side)), most=written(max(bars_of_side)), number=number
            ),
        }
        for side, bars_of_side in heights.items()
    ]
