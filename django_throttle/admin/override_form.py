"""The form of an override: names of rules that exist, and an end that can be chosen instead of reckoned."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_throttle.core import Rule
from django_throttle.models import ThrottleOverride
from django_throttle.models.doubts import misspelt
from django_throttle.models.override import LAST_YEAR
from django_throttle.rulebook import sources

AS_GIVEN: Final = ""
ENDLESS: Final = "endless"
NOW: Final = "0"
LASTING: Final = (
    (AS_GIVEN, "Until the time below"),
    ("1800", "30 minutes from now"),
    ("7200", "2 hours from now"),
    ("28800", "8 hours from now"),
    ("86400", "1 day from now"),
    ("604800", "1 week from now"),
    (ENDLESS, "Until somebody ends it"),
)
USUAL: Final = "7200"
MANY: Final = 30


class OverrideForm(forms.ModelForm):  # type: ignore[type-arg]
    """One override."""

    lasting = forms.ChoiceField(
        label="How long",
        choices=LASTING,
        required=False,
        initial=USUAL,
        help_text="Counted from when you save.",
    )

    class Meta:
        model = ThrottleOverride
        fields = ("kind", "value", "rules", "effect", "factor", "rate", "limit", "until", "reason")
        widgets = {"reason": forms.Textarea(attrs={"rows": 3}), "value": forms.TextInput(attrs={"size": 40})}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.known = sources.rules()
        if "rules" in self.fields:
            self.fields["rules"].help_text = _rules_help(str(self.fields["rules"].help_text), self.known)
        if "until" in self.fields:
            self.fields["until"].help_text = "Or a moment of your own, which goes before the choice above."
            until = self.instance.until
            if until and until.year > LAST_YEAR:  # stored before that was refused
                self.initial["until"] = until.replace(year=LAST_YEAR)
        if self.instance.pk and "lasting" in self.fields:
            self.fields["lasting"].initial = AS_GIVEN if self.instance.until else ENDLESS
            self.fields["lasting"].choices = (*LASTING, (NOW, "End it now"))  # type: ignore[attr-defined]

    def clean_rules(self) -> Any:
        """Names that were there before may stay, though their rules have gone."""
        names = self.cleaned_data["rules"]
        wrong = misspelt((name for name in names if name not in self.instance.rules), self.known)
        if wrong:
            raise ValidationError(wrong)
        return names

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        lasting, now = cleaned.get("lasting", AS_GIVEN), timezone.now()
        if "until" in self.changed_data and cleaned.get("until"):
            if cleaned["until"] <= now:
                self.add_error("until", "This time has passed.")
        elif lasting == ENDLESS:
            cleaned["until"] = None
        elif lasting != AS_GIVEN:
            cleaned["until"] = now + timedelta(seconds=int(lasting))
        elif not cleaned.get("until") and "until" not in self.errors:
            self.add_error("lasting", "Choose how long it lasts, or give a time below.")
        return cleaned


def _rules_help(text: str, rules: Iterable[Rule]) -> SafeString:
    """The admin shows help as it is, and names are what somebody typed."""
    names = sorted(rule.name for rule in rules)
    shown = ", ".join(names[:MANY]) + (", …" if len(names) > MANY else "")
    return format_html("{} {}", text, f"There are: {shown}." if names else "There are no rules yet.")
