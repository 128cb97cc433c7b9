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
from django_throttle.checks.scopes import fault_of_scope
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
MAX_FIELD_CHARS: Final = 300
RELIEF_OVERRIDE: Final = {"effect": "multiply", "factor": "2", "lasting": "7200"}
SUBJECTS: Final = ("user", "ip", "tenant", "api_key")
RESET_PERMISSION: Final = "django_throttle.add_throttleoverride"


@admin.register(ThrottleExplanation)
class ThrottleExplanationAdmin(PageEntry):
    """Entry of this page on the admin's index."""

    page = URL_NAME


def explain_page(rules: ModelAdmin[ThrottleRule], request: HttpRequest) -> HttpResponse:
    """Return the page, for staff who may view rules. The query has ``ident``, ``scope``, ``method`` and ``event``."""
    query = {name: request.GET.get(name, "").strip()[:MAX_FIELD_CHARS] for name in FIELDS}
    context = {
        "query": query,
        "events": event_labels(),
        "keys": example_rows(),
        "reset_url": reverse(f"{rules.admin_site.name}:{RESET_NAME}"),
    }
    return shown_page(
        rules,
        request,
        "django_throttle/throttlerule/explain",
        gettext("Why is a caller refused?"),
        lambda: {**context, **(_explanation_context(request, query) if query["ident"] else {})},
    )


def reset_view(rules: ModelAdmin[ThrottleRule], request: HttpRequest) -> HttpResponse:
    """Reset the budgets of a caller, for staff who may add overrides."""
    if not (rules.has_view_permission(request) and request.user.has_perm(RESET_PERMISSION)):
        raise PermissionDenied
    query = {name: request.POST.get(name, "").strip()[:MAX_FIELD_CHARS] for name in FIELDS}
    try:
        store, snapshot = get_store(), rulebook.current()
        explanation = explain_caller(store, snapshot, HypotheticalCall(), query["ident"]).explanation
        if explanation is None:
            raise ValidationError(gettext("Nobody knows whose this is: ask by the identity itself."))
        idents: dict[str, list[Rule]] = {}
        for explained in explanation.rules:
            counting = explained.counting
            if not counting.rule.holds_slots:
                idents.setdefault(explained.outcome.ident, []).append(counting.effective or counting.rule)
        for ident, counting_rules in idents.items():
            if ident == explanation.caller.name:  # budgets that are shared with other callers stay
                Limiter(dict.fromkeys(counting_rules), store).reset(ident)
    except (StoreError, InvalidSetting, DatabaseError) as error:
        message = gettext("Nothing was reset: {error}").format(error=translated(error))
        rules.message_user(request, message, messages.ERROR)
    except ValidationError as error:
        rules.message_user(request, joined(error.messages), messages.ERROR)
    else:
        name = explanation.caller.name
        message = gettext("The budgets of {name} are full again.").format(name=name)
        rules.message_user(request, message, messages.SUCCESS)
        rules.log_change(request, ThrottleRule(name=name[:100]), f"Reset the budgets of {name[:200]}.")
    return HttpResponseRedirect(f"{reverse(f'{rules.admin_site.name}:{URL_NAME}')}?{urlencode(query)}")


def _explanation_context(request: HttpRequest, query: dict[str, str]) -> dict[str, object]:
    """Return the context of the template, or that of its error."""
    try:
        call = HypotheticalCall(query["scope"], query["method"].upper(), query["event"])
        caller = explain_caller(get_store(), rulebook.current(), call, query["ident"])
        explanation = caller.explanation
        row_text = "".join(row_texts([explanation.caller.name], request.user).values()) if explanation else ""
    except ValidationError as error:
        return {"mistake": joined(error.messages)}
    except (InvalidSetting, ValueError) as error:
        return {"mistake": capitalised(translated(error))}
    except (StoreError, DatabaseError) as error:
        return {"failure": translated(error)}
    events = {**dict(event_labels()), "": gettext("Calls")}  # calls of functions have no event
    may_view_overrides = request.user.has_perm("django_throttle.view_throttleoverride")
    may_add_overrides = request.user.has_perm(RESET_PERMISSION)
    return {
        "caller": caller,
        "scope_fault": capitalised(translated(fault_of_scope(call, rulebook.current().rules))),
        "is_recorded": refusals.find_refusals is not None,
        "recent": [
            (times, last, events.get(last.event, last.event), translated(REASONS.get(last.reason, last.reason)))
            for times, last in caller.refusal_groups
        ],
        "explanation": explanation,
        "sentence": translated(caller.sentence),
        "row_text": row_text,
        "rules": [_rule_row(state) for state in explanation.rules[:PAGE_ROWS]] if explanation else (),
        "hidden": max(0, len(explanation.rules) - PAGE_ROWS) if explanation else 0,
        "others": _rules_by_reason(explanation.others) if explanation else (),
        "overrides": [(row, translated(row.meaning), row.until) for row in caller.rows] if may_view_overrides else (),
        "relief": _relief(caller, explanation) if may_add_overrides and explanation else "",
        "may_reset": may_add_overrides and explanation is not None,
        "sees_sockets": request.user.has_perm("django_throttle.view_throttleconnection"),
    }


def _rule_row(state: RuleState) -> dict[str, object]:
    """Return the row of a rule that counts the call."""
    override, reset_after = state.counting.override, state.outcome.reset_after
    return {
        "name": state.outcome.rule,
        "css_class": state.verdict,
        "verdict": translated(VERDICTS[state.verdict]),
        "used": written(state.used),
        "limit": "–" if state.limit is None else written(state.limit),
        "full": translated(in_short(reset_after)) if reset_after else gettext("now"),
        "why": translated(state.why),
        "override": override.number if override else None,
        "assumed": translated(state.counting.assumed),
    }


def _rules_by_reason(others: Iterable[NotCounting]) -> list[tuple[str, str]]:
    """Return the reasons why rules do not count the call, each with the names of its rules."""
    names: dict[str, list[str]] = {}
    for other in others:
        names.setdefault(translated(other.why), []).append(other.rule.name)
    return [(why, ", ".join(rules)) for why, rules in names.items()][:PAGE_ROWS]


def _relief(caller: CallerExplanation, explanation: Explanation) -> str:
    """Return the query of the form of a new override for this caller, or "" if no override can be for it."""
    kind, _, value = explanation.caller.name.partition(":")
    value = KEY_HASH_PREFIX + value if kind == "api_key" else value  # an ident has only the hash
    if kind not in SUBJECTS or not value:
        return ""
    refusing = explanation.refusing or caller.refused_by
    scope = explanation.call.scope or next((refusal.scope for refusal in caller.recent), "")
    at = (
        gettext("429 on {scope}, rule {rules}, ref {reference}")
        if scope
        else gettext("429 by rule {rules}, ref {reference}")
    )
    reason = at.format(scope=scope, rules=", ".join(refusing) or "*", reference=caller.reference)
    rules = ",".join(refusing) or "*"
    return urlencode({"kind": kind, "value": value, "rules": rules, **RELIEF_OVERRIDE, "reason": reason})
