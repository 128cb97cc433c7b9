"""The part of a rule's form that tries it before it is saved, on the calls that were recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

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
from django_throttle.translated import translated, written

MOST_AFFECTED: Final = 10
BARS: Final = {"hour": 60, "day": 48}
NAMES: Final = {"live": gettext_lazy("live rule"), "edited": gettext_lazy("edited rule")}


def trial_part(
    rules: ModelAdmin[ThrottleRule], request: HttpRequest, asked: Callable[[], Mapping[str, object]]
) -> HttpResponse:
    """The answer, for those who may see the rules. ``asked`` returns ``live``, ``edited`` and ``errors`` of the form.

    Either rule may be None: one that is new has no live rule. ``span`` in the form is "hour" or "day".
    """
    span = "day" if request.POST.get("span") == "day" else "hour"
    return shown_page(rules, request, "throttle_console/trial", "", lambda: _trial_context(span, asked()))


def _trial_context(span: str, form: Mapping[str, Any]) -> dict[str, object]:
    """Return the context of the template, with what both rules refuse."""
    if form["errors"]:
        return {"errors": form["errors"]}
    end = timezone.now()
    try:
        recorded = recorded_calls(SPANS[span])
    except (StoreError, InvalidSetting) as error:
        return {"failure": translated(error)}
    if not recorded.calls:
        return {
            "span": span,
            "is_empty": True,
            "there": translated(recorded.what_is_there),
        }
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
        "affected": _affected(results),
        "pictures": _pictures(results, span, end.timestamp()),
        "begins": end - timedelta(hours=SPANS[span]),
        "ends": end,
        "width": WIDTH,
        "height": HEIGHT,
    }


def _remarks(side: str, rule: Rule | None, told: RecordedCalls) -> list[str]:
    """What has to be known to read the numbers of a rule, a sentence each."""
    if rule is None:
        nothing = side == "live"
        return [gettext("There is no live rule to compare with.") if nothing else gettext("You may not edit rules.")]
    if why := told.why_not(rule):
        said = gettext("The {rule} cannot be tried on what was recorded: {why}.")
        return [said.format(rule=NAMES[side], why=translated(why))]
    found = {
        gettext("The {rule} is switched off: this is what it would refuse if it were on."): not rule.enabled,
        gettext("The {rule} only records: nobody is told of these refusals."): rule.is_shadow,
        gettext("Requests are replayed, other events are not."): bool({*rule.events} - {*EVENTS}),
    }
    return [text.format(rule=NAMES[side]) for text, holds in found.items() if holds]


def _side(side: str, replayed: Replayed, recorded: RecordedCalls) -> dict[str, object]:
    return {
        "name": NAMES[side],
        "one": replayed,
        "refused": _about(recorded.estimate(replayed)),
        "idents": _about(recorded.estimate_idents(replayed)),
    }


def _about(estimate: tuple[int, int, int]) -> str:
    likely, low, high = estimate
    return gettext("{likely} ({low} to {high})").format(likely=written(likely), low=written(low), high=written(high))


def _affected(found: Mapping[str, Replayed]) -> list[dict[str, object]]:
    """The idents for whom the edit changes most; those for whom it changes nothing by what is refused to them."""
    idents = {ident for one in found.values() for ident in one.idents}
    rows = [(ident, [one.idents[ident] for one in found.values()]) for ident in idents]
    rows.sort(key=lambda row: (min(row[1]) - max(row[1]), -sum(row[1]), row[0]))
    return [{"ident": row[0], "is_one": row[0] != EVERYONE, "numbers": row[1]} for row in rows[:MOST_AFFECTED]]


def _pictures(found: Mapping[str, Replayed], span: str, end: float) -> list[dict[str, object]]:
    """Refused calls over time, of each rule, all drawn to one scale."""
    number, seconds = BARS[span], SPANS[span] * 3600
    heights = {side: [0] * number for side in found}
    for side, one in found.items():
        for at in one.times:
            heights[side][max(0, min(number - 1, int((at - end + seconds) / seconds * number)))] += 1
    most = max((max(some) for some in heights.values()), default=0)
    return [
        {
            "name": NAMES[side],
            "bars": bars([(0, height) for height in some], most),
            "label": gettext("{rule}: {sum} refused, {most} at most in one of {number} bars").format(
                rule=NAMES[side], sum=written(sum(some)), most=written(max(some)), number=number
            ),
        }
        for side, some in heights.items()
    ]
