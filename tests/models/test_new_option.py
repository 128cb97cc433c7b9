"""An option that is added to the table is there wherever options are, without another line."""

from dataclasses import dataclass
from typing import Any

import pytest
from django.forms import modelform_factory
from django.test.utils import isolate_apps

from django_throttle.admin.rules import PreviewForm, fieldsets, form_fields, preview_options
from django_throttle.core import Rule
from django_throttle.core.descriptions import describe
from django_throttle.core.options import AMOUNT, Choice, option
from django_throttle.exceptions import InvalidRule
from django_throttle.models.fields import add_columns, rule_constraints
from django_throttle.models.rule import RuleRow
from docs.options import option_table

TYPED = {
    "name": "api", "enabled": "on", "algorithm": "gcra", "rate": "100/min", "refill": "continuous", "resolution": "1",
    "key": "user", "scopes": "*", "events": ["request"], "action": "reject", "on_store_failure": "local", "cost": "1",
    "enforce_at": "1.0", "estimator": "fast", "unit": "calls", "at_limit": "reject", "badge": "blue",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Badged(Rule):
    """A rule of a table with one more row."""

    badge: str = option(
        "choice",
        "none",
        group=AMOUNT,
        label="Badge of callers",
        only=("gcra",),
        choices={"none": Choice("No badge"), "blue": Choice("Blue badge", "wearing a blue badge")},
        help="Which badge callers wear.",
    )


def test_a_rule_has_it_checks_it_and_describes_it() -> None:
    rule = Badged("api", "5/min", algorithm="gcra", badge="blue")
    assert rule.badge == "blue" and rule.parts == (rule,) and rule.share(2).badge == "blue"
    assert rule.as_options() == {"rate": "5/min", "algorithm": "gcra", "badge": "blue"}
    assert Badged.from_options("api", rule.as_options()) == rule
    assert Badged("api", "5/min").badge == "none"
    assert describe(rule) == "each user or address: 5 requests per minute, bursts up to 5, wearing a blue badge"
    for options, said in (
        ({"algorithm": "gcra", "badge": "bleu"}, "must be one of none, blue, not 'bleu'; did you mean 'blue'[?]"),
        ({"badge": "blue"}, r"badge of callers \(badge\) belongs to GCRA only"),
        ({"bagde": "blue"}, "no option 'bagde'; did you mean 'badge'[?]"),
    ):
        with pytest.raises(InvalidRule, match=said):
            Badged.from_options("api", {"rate": "5/min", **options})


def test_the_table_the_form_and_the_docs_have_it(settings: Any) -> None:
    with isolate_apps("django_throttle"):

        class BadgedRow(RuleRow):
            core = Badged

            class Meta:
                app_label = "django_throttle"
                constraints = rule_constraints(Badged)

        add_columns(BadgedRow, Badged)
        form = modelform_factory(BadgedRow, form=PreviewForm, fields=form_fields(Badged))
    column, rule = BadgedRow._meta.get_field("badge"), Badged("api", "5/min", algorithm="gcra", badge="blue")
    assert (column.default, column.help_text) == ("none", "Which badge callers wear.")
    assert {"throttle_badge_known", "throttle_badge_of_gcra"} < {check.name for check in BadgedRow._meta.constraints}
    assert BadgedRow.of(rule).as_rule() == rule
    field = form().fields["badge"]
    assert (field.label, list(field.choices)) == ("Badge of callers", [("none", "No badge"), ("blue", "Blue badge")])
    assert "badge" in dict(fieldsets(Badged))[AMOUNT]["fields"]
    filled = form(TYPED)
    assert filled.is_valid() and filled.instance.meaning.endswith("wearing a blue badge")
    wrong = form({**TYPED, "algorithm": "sliding_log"})
    assert wrong.errors == {"badge": ["“Badge of callers” belongs to GCRA only"]}
    shown = preview_options(Badged)
    assert (shown["algorithms"]["badge"], shown["defaults"]["badge"]) == (["gcra"], "none")
    row = "   * - ``badge``\n     - Badge of callers\n     - ``none``, ``blue``\n     - ``none``\n     - ``gcra``\n"
    assert row in option_table(Badged)
