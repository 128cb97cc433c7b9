"""Model of overrides: an operator's exceptions to rules for a subject."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Self

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.urls import get_resolver
from django.utils.translation import gettext, gettext_lazy

from django_throttle import rulebook
from django_throttle.conf import conf
from django_throttle.core import Override, Rate, Rule, texts
from django_throttle.core.key import KEY_KINDS, without_setting
from django_throttle.core.overrides import (
    EFFECTS,
    EVERY_RULE,
    MAX_FACTOR,
    MAX_SUBJECT_LENGTH,
    UNLISTED_PREFIX,
    apply_override,
    deciding,
    describe_effect,
    rules_in_words,
)
from django_throttle.core.texts import gettext_noop
from django_throttle.local.shared_clock import shared_now
from django_throttle.models.fields import (
    MomentColumn,
    NamesField,
    NoteColumn,
    NumberColumn,
    RatesField,
    TextColumn,
    WholeColumn,
    constraints,
    split,
)
from django_throttle.models.rule import AnnouncedQuerySet, CheckedRow
from django_throttle.models.subjects import (
    KEY_HASH_PATTERN,
    KEY_HASH_PREFIX,
    missing_group,
    nearest,
    stored_value,
    subject_of,
)
from django_throttle.models.typed_keys import typed_key_warning
from django_throttle.rulebook import sources
from django_throttle.translated import ngettext, to_the_second, translated

LABELS: Final = {
    **{name: kind.override for name, kind in KEY_KINDS.items() if kind.rank},
    "group": gettext_noop("Group"),
}
KIND_LABELS: Final = tuple((name, gettext_lazy(label)) for name, label in LABELS.items())
EFFECT_LABELS: Final = (
    ("multiply", gettext_lazy("Multiply the limit")),
    ("replace", gettext_lazy("Replace the limit")),
    ("exempt", gettext_lazy("Exempt")),
    ("block", gettext_lazy("Block")),
)
MAX_YEAR: Final = 9998  # later times have no local time in some time zones
SHOWN_HASH_CHARS: Final = 8  # characters of a hash that are displayed
CONSTRAINTS: Final = constraints(
    "throttle_override",
    value_not_empty=~Q(value=""),
    value_address=~Q(kind="ip") | Q(value__regex="^[0-9a-f:.]+(/[0-9]{1,3})?$"),
    value_hashed=~Q(kind="api_key") | Q(value__regex=KEY_HASH_PATTERN),  # never the key itself
    rules_not_empty=~Q(rules=""),
    effect_known=Q(effect__in=list(EFFECTS)),
    factor_of_multiply=(~Q(effect="multiply") & Q(factor__isnull=True))
    # NULL is excluded, because a constraint whose result is NULL accepts the row.
    | Q(effect="multiply", factor__isnull=False, factor__gt=0, factor__lte=MAX_FACTOR),
    limit_of_replace=(~Q(effect="replace") & Q(rate="", limit__isnull=True))
    | (Q(effect="replace") & (~Q(rate="") | Q(limit__isnull=False))),
    reason_given=Q(reason__regex="[^ ]"),
)


class OverrideQuerySet(AnnouncedQuerySet["ThrottleOverride"]):
    """Queryset of overrides."""

    def in_force(self) -> OverrideQuerySet:
        """Return the overrides that have not ended."""
        return self.filter(Q(until__isnull=True) | Q(until__gt=shared_now()))

    def expired(self) -> OverrideQuerySet:
        """Return the overrides that have ended. Operators may extend them."""
        return self.filter(until__lte=shared_now())


class ThrottleOverride(CheckedRow):
    """Override. The row stays when the override ends."""

    kind = TextColumn(
        gettext_lazy("subject"),
        max_length=20,
        choices=KIND_LABELS,
        default="user",
        help_text=gettext_lazy("The most specific override wins: API key, user, address, network, tenant, group."),
    )
    value = TextColumn(
        gettext_lazy("who"),
        max_length=MAX_SUBJECT_LENGTH,
        help_text=gettext_lazy(
            "User: id, name or e-mail. Address or network: 203.0.113.9, 203.0.113.0/24. API key: the key or its row, "
            "shop.apikey:5; only a hash is stored."
        ),
    )
    rules = NamesField(
        gettext_lazy("rules"),
        max_length=1000,
        default=(EVERY_RULE,),
        help_text=gettext_lazy("Names separated by commas; * means every rule."),
    )
    effect = TextColumn(
        gettext_lazy("effect"),
        max_length=20,
        choices=EFFECT_LABELS,
        default="multiply",
        help_text=gettext_lazy("“Exempt” stops counting; “Block” refuses every call."),
    )
    factor = NumberColumn(
        gettext_lazy("factor"),
        null=True,
        blank=True,
        help_text=gettext_lazy("2 doubles the limit, 0.5 halves it."),
    )
    rate = RatesField(
        gettext_lazy("rate"),
        max_length=300,
        blank=True,
        default="",
        help_text=gettext_lazy("For example 500/min. Separate several with commas."),
    )
    limit = WholeColumn(
        gettext_lazy("limit"),
        null=True,
        blank=True,
        help_text=gettext_lazy("How many may be open at once."),
    )
    until = MomentColumn(
        gettext_lazy("until"),
        null=True,
        blank=True,
        help_text=gettext_lazy("When it ends by itself. Empty: it holds until somebody ends it."),
    )
    reason = NoteColumn(gettext_lazy("reason"), help_text=gettext_lazy("For your colleagues. Clients never see it."))
    created_by = TextColumn(
        gettext_lazy("made by"), max_length=150, blank=True, editable=False, help_text=gettext_lazy("Who made it.")
    )
    created_at = MomentColumn(gettext_lazy("made"), auto_now_add=True, help_text=gettext_lazy("When it was made."))

    history_kind = "override"
    objects = OverrideQuerySet.as_manager()
    _stored: tuple[str, str] | None = None
    _key_warning = ""

    class Meta:
        verbose_name = gettext_lazy("override")
        verbose_name_plural = gettext_lazy("overrides")
        ordering = ("-created_at", "-pk")
        constraints = CONSTRAINTS
        indexes = (models.Index(fields=("until",), name="throttle_override_until"),)

    def __str__(self) -> str:
        return self.named()

    @property
    def history_name(self) -> str:
        return self.named(str)

    def named(self, translated: Callable[[str], str] = gettext) -> str:
        """Return the subject with its kind, in the current language."""
        if self.kind == "ip":
            label = gettext_noop("Network") if "/" in self.value else gettext_noop("Address")
        else:
            label = LABELS.get(self.kind, self.kind)
        value = self.value
        if self.kind == "api_key":
            value = value.removeprefix(KEY_HASH_PREFIX)[:SHOWN_HASH_CHARS] + "…"
        return f"{translated(label)} {value}"

    def as_override(self) -> Override:
        """Return the core override. Raise InvalidOverride or InvalidRate if the row is not valid."""
        return Override(
            subject=subject_of(self.kind, self.value),
            effect=self.effect,
            rules=split(self.rules),
            factor=self.factor,
            rates=tuple(Rate.parse(rate, calendar=True) for rate in split(self.rate)),
            limit=self.limit,
            until=self.until.timestamp() if self.until else None,
            number=self.pk or 0,
        )

    read = as_override

    def describe(self) -> str:
        return describe_effect(self.as_override())

    @property
    def terms(self) -> str:
        """Effect, end, reason and author, in the current language."""
        author = f" ({self.created_by})" if self.created_by else ""
        effect = translated(texts.with_commas([self.meaning, self.end_in_words()]))
        return f"{effect}: {' '.join(self.reason.split())}{author}"

    def lasts(self, now: datetime | None = None) -> bool:
        """Return True if the override has not ended."""
        return self.until is None or self.until > (now or shared_now())

    def end_in_words(self) -> str:
        if self.until is None:
            return texts.translatable("without an end")
        return texts.translatable("until {moment}", moment=to_the_second(self.until))

    @classmethod
    def from_db(
        cls, db: str | None, field_names: Collection[str], values: Collection[Any], **options: Any
    ) -> Self:  # Django 6.1 passes an option
        row = super().from_db(db, field_names, values, **options)
        if {"kind", "value"} <= set(field_names):
            row._stored = (row.kind, row.value)
        return row

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        """Validate fields. Replace a changed subject by its stored form."""
        super().clean_fields(exclude=exclude)
        if {"kind", "value"} & set(exclude or ()) or (self.kind, self.value) == self._stored:
            return
        typed = self.value
        try:
            self.value = stored_value(self.kind, typed)
        except ValidationError as error:
            raise ValidationError({"value": error}) from error
        if self.kind == "api_key" and self.value != typed:  # the key itself is lost after this
            self._key_warning = typed_key_warning(typed.strip())

    def clean_row(self) -> None:
        self._stored = (self.kind, self.value)
        super().clean_row()

    def clean(self) -> None:
        if self.until is not None and self.until.year > MAX_YEAR:
            fault = {"until": gettext("Until {year} at the latest; leave it empty for no end.").format(year=MAX_YEAR)}
            raise ValidationError(fault)
        if not self.reason.strip():
            raise ValidationError({"reason": gettext("Say why, for whoever reads it next.")})
        try:
            super().clean()
        except ValidationError as error:
            if "value" not in error.error_dict:  # clean_fields has checked it, unless it was stored before
                raise


def misspelt(names: Iterable[str], rules: Iterable[Rule], *, unlisted: bool = True) -> list[str]:
    """Return a sentence for each name that neither a rule nor a limit of REST framework's throttles has.

    Patterns are ignored. ``unlisted`` is False for a command that cannot change limits of REST framework's throttles.
    """
    exact = [name for name in names if set(name).isdisjoint("*?[")]
    existing = {rule.name for rule in rules}
    if unlisted and any(name.startswith(UNLISTED_PREFIX) for name in exact):
        existing |= _unlisted()
    return [_missing(name, existing, unlisted) for name in exact if name not in existing]


def override_warnings(row: ThrottleOverride, rules: Iterable[Rule]) -> Iterator[str]:
    """Yield warnings about a saved override that has no effect, or less than its row says."""
    override = row.as_override()
    named = [rule for rule in rules if override.names(rule.name)]
    if row.kind == "group" and (warning := missing_group(row.value)):
        yield warning
    if row._key_warning:
        yield row._key_warning
    for kind in without_setting((row.kind,), conf()):
        pattern = gettext_noop(
            "The setting {setting} is empty: the override does nothing until it says how {kind}s are found."
        )
        yield translated(texts.translatable(pattern, setting=kind.setting, kind=row.kind))
    if (
        not named
        and not override.names_every_rule
        and not any(name.startswith(UNLISTED_PREFIX) for name in override.rules)
    ):
        pattern = gettext_noop("No rule is named {rules}: the override does nothing until there is one.")
        yield translated(texts.translatable(pattern, rules=rules_in_words(override.rules)))
    if override.effect in ("multiply", "replace"):
        unchanged = [rule.name for rule in named if apply_override(rule, override) is None]
        if unchanged:
            yield ngettext(
                "It does not fit {rules}, which holds as it is: give what fits.",
                "It does not fit {rules}, which hold as they are: give what fits.",
                len(unchanged),
                rules=rules_in_words(unchanged),
            )
    yield from _precedence_warnings(row, override, named) if row.lasts() else ()


def _precedence_warnings(row: ThrottleOverride, override: Override, named: Sequence[Rule]) -> Iterator[str]:
    """Yield a sentence for each override of the same subject that precedes this one for some of its rules."""
    pattern = gettext_noop(
        "Override {number} precedes this one for {rules}: {meaning}, {end}. Until it ends, this one does nothing there."
    )
    rows = type(row)._default_manager.using(row._state.db).in_force().filter(kind=row.kind, value=row.value)
    for other_row in rows:
        if other_row.fault or (other := other_row.as_override()).rank >= override.rank:
            continue
        names = [rule.name for rule in named if deciding(rule, [other], apply_override)[0]]
        if names:
            rules = rules_in_words(names if len(names) < len(named) else override.rules)
            values = {"number": other_row.pk, "meaning": other_row.meaning, "end": other_row.end_in_words()}
            yield translated(texts.translatable(pattern, rules=rules, **values))


def _unlisted() -> set[str]:
    """Return the limits of REST framework's throttles. Load the views first, because they may define such limits."""
    with suppress(Exception):  # the site's own error if views cannot be loaded
        _ = get_resolver().url_patterns
    return set[str]().union(*(names() for names in sources.unlisted_limits))


def _missing(name: str, existing: Iterable[str], unlisted: bool) -> str:
    if name.startswith(UNLISTED_PREFIX) and not unlisted:
        pattern = gettext_noop(
            "{name!r} is a limit of REST framework's throttles, not a rule: nobody can reset it, it ends by itself."
        )
        return translated(texts.translatable(pattern, name=name))
    if fault := rulebook.current().faults.get(name):
        return translated(texts.translatable("rule {rule!r}: {fault}", rule=name, fault=fault))
    missing = texts.translatable("There is no rule {name!r}.", name=name)
    return translated(texts.sentences([missing, nearest(name, existing)]))
