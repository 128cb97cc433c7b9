"""The admin's page "Why is a caller refused?", and the reset of a caller's budgets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext

from django_throttle import rulebook
from django_throttle.admin.page import PageEntry, event_labels, shown_page
from django_throttle.core import Rule
from django_throttle.exceptions import InvalidSetting, StoreError
from django_throttle.explain import refusals
from django_throttle.explain.predict import REASONS, VERDICTS, Explanation, RuleState, in_short
from django_throttle.explain.why_refused import CallerExplanation, explain_caller
from django_throttle.limiter import Limiter
from django_throttle.models import ThrottleExplanation, ThrottleRule
from django_throttle.models.ident_rows import row_texts
from django_throttle.models.subjects import KEY_HASH_PREFIX
from django_throttle.models.typed_keys import example_rows
from django_throttle.rulebook.coverage import HypotheticalCall, NotCounting
from django_throttle.stores import get_store
from django_throttle.translated import capitalised, joined, translated, written

URL_NAME: Final = "django_throttle_explain"
RESET_NAME: Final = "django_throttle_explain_reset"
PAGE_ROWS: Final = 200
FIELDS: Final = ("ident", "scope", "method", "event")
LONGEST: Final = 300  # characters of a field
RELIEF: Final = {"effect": "multiply", "factor": "2", "lasting": "7200"}
SUBJECTS: Final = ("user", "ip", "tenant", "api_key")
RESETS: Final = "django_throttle.add_throttleoverride"  # who may relieve somebody


@admin.register(ThrottleExplanation)
class ThrottleExplanationAdmin(PageEntry):
    """The entry of this page."""

    page = URL_NAME


def explain_page(rules: ModelAdmin[ThrottleRule], request: HttpRequest) -> HttpResponse:
    """The page, for those who may see the rules; ``?ident``, ``scope``, ``method`` and ``event`` say what is asked."""
    asked = {name: request.GET.get(name, "").strip()[:LONGEST] for name in FIELDS}
    about = {
        "asked": asked,
        "events": event_labels(),
        "keys": example_rows(),
        "reset_url": reverse(f"{rules.admin_site.name}:{RESET_NAME}"),
    }
    return shown_page(
        rules,
        request,
        "django_throttle/throttlerule/explain",
        gettext("Why is a caller refused?"),
        lambda: {**about, **(_answered(request, asked) if asked["ident"] else {})},
    )


def reset_view(rules: ModelAdmin[ThrottleRule], request: HttpRequest) -> HttpResponse:
    """Make the budgets of one caller full again; for those who may add overrides."""
    if not (rules.has_view_permission(request) and request.user.has_perm(RESETS)):
        raise PermissionDenied
    asked = {name: request.POST.get(name, "").strip()[:LONGEST] for name in FIELDS}
    try:
        store, snapshot = get_store(), rulebook.current()
        explanation = explain_caller(store, snapshot, HypotheticalCall(), asked["ident"]).explanation
        if explanation is None:
            raise ValidationError(gettext("Nobody knows whose this is: ask by the identity itself."))
        idents: dict[str, list[Rule]] = {}
        for explained in explanation.rules:
            counting = explained.counting
            if not counting.rule.holds_slots:
                idents.setdefault(explained.outcome.ident, []).append(counting.effective or counting.rule)
        for ident, some in idents.items():
            if ident == explanation.caller.name:  # what others share with the caller stays
                Limiter(dict.fromkeys(some), store).reset(ident)
    except (StoreError, InvalidSetting, DatabaseError) as error:
        said = gettext("Nothing was reset: {error}").format(error=translated(error))
        rules.message_user(request, said, messages.ERROR)
    except ValidationError as error:
        rules.message_user(request, joined(error.messages), messages.ERROR)
    else:
        name = explanation.caller.name
        said = gettext("The budgets of {name} are full again.").format(name=name)
        rules.message_user(request, said, messages.SUCCESS)
        rules.log_change(request, ThrottleRule(name=name[:100]), f"Reset the budgets of {name[:200]}.")
    return HttpResponseRedirect(f"{reverse(f'{rules.admin_site.name}:{URL_NAME}')}?{urlencode(asked)}")


def _answered(request: HttpRequest, asked: dict[str, str]) -> dict[str, object]:
    try:
        call = HypotheticalCall(asked["scope"], asked["method"].upper(), asked["event"])
        found = explain_caller(get_store(), rulebook.current(), call, asked["ident"])
    except ValidationError as error:
        return {"mistake": joined(error.messages)}
    except (InvalidSetting, ValueError) as error:
        return {"mistake": capitalised(translated(error))}
    except (StoreError, DatabaseError) as error:
        return {"failure": translated(error)}
    told, events = found.explanation, {**dict(event_labels()), "": gettext("Calls")}  # of functions
    shows = request.user.has_perm("django_throttle.view_throttleoverride")
    relieves = request.user.has_perm(RESETS)
    return {
        "found": found,
        "is_recorded": refusals.find_refusals is not None,
        "recent": [
            (times, one, events.get(one.event, one.event), translated(REASONS.get(one.reason, one.reason)))
            for times, one in found.refusal_groups
        ],
        "told": told,
        "sentence": translated(found.sentence),
        "row": row_texts([told.caller.name], request.user).get(told.caller.name, "") if told else "",
        "rules": [_row(one) for one in told.rules[:PAGE_ROWS]] if told else (),
        "hidden": max(0, len(told.rules) - PAGE_ROWS) if told else 0,
        "others": _rules_by_reason(told.others) if told else (),
        "overrides": [(row, translated(row.meaning), row.until) for row in found.rows] if shows else (),
        "relief": _relief(found, told) if relieves and told else "",
        "may_reset": relieves and told is not None,
        "sees_sockets": request.user.has_perm("django_throttle.view_throttleconnection"),
    }


def _row(one: RuleState) -> dict[str, object]:
    number = one.counting.override.number if one.counting.override else None
    full = translated(in_short(one.outcome.reset_after)) if one.outcome.reset_after else gettext("now")
    numbers = {"used": written(one.used), "limit": written(one.outcome.limit)}
    said = {"verdict": VERDICTS[one.verdict], "why": one.why, "assumed": one.counting.assumed}
    told = {name: translated(text) for name, text in said.items()}
    return {"one": one, "name": one.outcome.rule, "full": full, "override": number, **told, **numbers}


def _rules_by_reason(others: Iterable[NotCounting]) -> list[tuple[str, str]]:
    """Return the reasons why rules do not count the call, each with the names of its rules."""
    names: dict[str, list[str]] = {}
    for other in others:
        names.setdefault(translated(other.why), []).append(other.rule.name)
    return [(why, ", ".join(rules)) for why, rules in names.items()][:PAGE_ROWS]


def _relief(found: CallerExplanation, told: Explanation) -> str:
    """The query of the form of a new override for this caller; empty where overrides have no such subject."""
    kind, _, value = told.caller.name.partition(":")
    value = KEY_HASH_PREFIX + value if kind == "api_key" else value  # an ident has only the hash
    if kind not in SUBJECTS or not value:
        return ""
    refusing = told.refusing or found.refused_by
    scope = told.call.scope or next((refusal.scope for refusal in found.recent), "")
    at = gettext("429 on {scope}, rule {rules}, ref {tag}") if scope else gettext("429 by rule {rules}, ref {tag}")
    reason = at.format(scope=scope, rules=", ".join(refusing) or "*", tag=found.tag)
    rules = ",".join(refusing) or "*"
    return urlencode({"kind": kind, "value": value, "rules": rules, **RELIEF, "reason": reason})
