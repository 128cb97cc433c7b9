"""The model of rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db import models

from django_throttle.core import Rule
from django_throttle.core.descriptions import describe
from django_throttle.core.options import MAX_NAME
from django_throttle.core.rule import OPTIONS
from django_throttle.exceptions import InvalidRate, InvalidRule
from django_throttle.models.constraints import RULE_CONSTRAINTS
from django_throttle.models.fields import (
    ACTION_LABELS,
    ALGORITHM_LABELS,
    AT_LIMIT_LABELS,
    ESTIMATOR_LABELS,
    FAILURE_LABELS,
    REFILL_LABELS,
    UNIT_LABELS,
    CostField,
    FiniteFloatField,
    MethodsField,
    NamesField,
    RatesField,
    SharesField,
    StatusesField,
    check_texts,
    is_tidy,
    split,
)
from django_throttle.rulebook import in_force
from django_throttle.rulebook.sources import check_allowed, sentence

M = TypeVar("M", bound=models.Model)


class AnnouncedQuerySet(models.QuerySet[M]):
    """Edits in bulk send no signals, so they are announced here."""

    def update(self, **values: Any) -> int:
        changed = super().update(**values)
        in_force.announce(self.db)
        return changed

    def bulk_create(self, objs: Iterable[M], *args: Any, **options: Any) -> list[M]:
        created = super().bulk_create(objs, *args, **options)
        in_force.announce(self.db)
        return created


class RuleColumns(models.Model):
    """What a rule says, option by option, and why it exists."""

    name = models.CharField(
        max_length=MAX_NAME,
        unique=True,
        help_text="Short and telling: it appears in logs and in refusals. "
        "A rule in settings with the same name is replaced by this one.",
    )
    enabled = models.BooleanField(default=True, help_text="Untick to suspend the rule without losing it.")
    algorithm = models.CharField(
        max_length=20,
        choices=ALGORITHM_LABELS,
        default="sliding_window",
        help_text="How calls are counted. Sliding window: evenly, right for most rules. Sliding log: exactly, for "
        "small limits. Fixed window: afresh every minute, hour or day, so twice the rate may pass around the turn. "
        "Token bucket and GCRA: refilled evenly, with bursts. Leaky bucket: drained evenly, can delay. "
        "Concurrency: not a rate, but how many connections are open at once.",
    )
    rate = RatesField(
        max_length=300,
        blank=True,
        default="",
        help_text="So many in so long: 100/min, 5/10m, 10/s or 1000/day. Several with commas in between must all be "
        "kept: 10/s, 1000/day. Leave empty for concurrency.",
    )
    limit = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="For concurrency only: how many may be open at once."
    )
    burst = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        help_text="For the buckets and GCRA: the most that may come at once after a rest, or that may wait when calls "
        "are delayed. Empty: the rate's number.",
    )
    refill = models.CharField(
        max_length=20,
        choices=REFILL_LABELS,
        default="continuous",
        help_text="For the token bucket: evenly, or all of the rate at once when its time has passed.",
    )
    resolution = models.PositiveSmallIntegerField(
        default=1,
        help_text="For the sliding window: in how many steps the window moves on. "
        "More steps follow the rate more closely and take a little more memory; 1 is fine for most rules.",
    )
    estimator = models.CharField(
        max_length=20,
        choices=ESTIMATOR_LABELS,
        default="fast",
        help_text="For the damper: how it finds out how much is attempted. Fast reacts within seconds; "
        "the average of 24 seconds takes longer and wavers less.",
    )
    batched = models.BooleanField(
        "charge in batches",
        default=False,
        help_text="For a fixed window, such as a quota beside a damper: a process charges what has passed every few "
        "seconds instead of asking for each call. A little more than the limit may pass.",
    )
    strict = models.BooleanField(
        default=False,
        help_text="For the sliding window: never let more than the rate through in any window, "
        "at the price of refusing some calls early.",
    )
    timezone = models.CharField(
        "time zone",
        max_length=100,
        blank=True,
        default="",
        help_text="For a fixed window of an hour, day, week or month: where it begins, such as Europe/Berlin. "
        "Empty: windows are counted from midnight UTC.",
    )
    key = models.CharField(
        "who",
        max_length=200,
        default="user_or_ip",
        help_text="Who has a budget of their own. “User” leaves out visitors who are not logged in; "
        "“user or address” counts those by their address.",
    )
    scopes = NamesField(
        max_length=1000,
        default=("*",),
        help_text="What the rule covers, with commas in between: the throttle_scope of views and consumers, or the "
        "name of a route. * stands for any text, so * alone is everything. All of them draw on one budget.",
    )
    events = NamesField(
        max_length=100,
        default=("request",),
        help_text="What is counted. Several kinds draw on one budget.",
    )
    methods = MethodsField(
        max_length=100,
        blank=True,
        default=(),
        help_text="Only requests of these HTTP methods, with commas in between: POST, PUT. GET covers HEAD too. "
        "Empty: every method.",
    )
    audience = NamesField(
        "only for",
        max_length=1000,
        blank=True,
        default=(),
        help_text="Only calls of these, with commas in between: anonymous, authenticated, staff, group:editors, "
        "tenant:acme. One of them is enough. Empty: everybody.",
    )
    count_on = StatusesField(
        "count only answers",
        max_length=300,
        blank=True,
        default=(),
        help_text="Only requests that are answered with one of these HTTP statuses use up the budget: 401, 403 for "
        "failed logins. Empty: all requests do.",
    )
    warn_at = SharesField(
        max_length=100,
        blank=True,
        default=(),
        help_text="Tell the site when use reaches these shares of the limit: 80 %, 100 %. Each is told once in a "
        "window, for each of those who have a budget; what is done then is the site's own code. Empty: never.",
    )
    enforce_at = FiniteFloatField(
        "refuse at",
        default=1.0,
        help_text="How many times the limit is used up before calls are refused. 1: at the limit itself. 2.5: at two "
        "and a half times; in between, calls pass and the client is told that nothing is left.",
    )
    action = models.CharField(
        max_length=20,
        choices=ACTION_LABELS,
        default="reject",
        help_text="“Only record” lets everything through, and what would have been refused is recorded in the log: "
        "the way to try a new rule out. “Delay” is for the leaky bucket: a call waits for its turn, then passes.",
    )
    max_delay = FiniteFloatField(
        null=True,
        blank=True,
        help_text="For “delay”: how many seconds a call waits at most; one that would wait longer is refused.",
    )
    at_limit = models.CharField(
        "one too many",
        max_length=20,
        choices=AT_LIMIT_LABELS,
        default="reject",
        help_text="For concurrency: who goes when one more WebSocket is opened than may be. The one that is closed is "
        "told why. Requests in flight are never cut off.",
    )
    on_store_failure = models.CharField(
        "without Redis",
        max_length=20,
        choices=FAILURE_LABELS,
        default="local",
        help_text="What happens while Redis does not answer. "
        "“Count in each process” divides the limit by the number of server processes.",
    )
    cost = CostField(
        max_length=200,
        default=1,
        help_text="How much of the budget one call takes, where the code says nothing else: a number, or the path of a "
        "function that a rule in settings has too.",
    )
    unit = models.CharField(
        max_length=20,
        choices=UNIT_LABELS,
        default="calls",
        help_text="What the rate counts: calls, or the bytes of requests and WebSocket messages.",
    )
    count_denied = models.BooleanField(
        "count refused calls",
        default=False,
        help_text="Refused calls use up the budget too: whoever keeps trying stays locked out. For logins.",
    )
    description = models.TextField(blank=True, help_text="Why this rule exists, for whoever reads it next.")
    updated_at = models.DateTimeField("last edited", auto_now=True)

    class Meta:
        abstract = True


class ThrottleRule(RuleColumns):
    """One rule of the rulebook; it replaces the rule of the same name in settings."""

    objects = AnnouncedQuerySet["ThrottleRule"].as_manager()

    class Meta:
        verbose_name = "rule"
        ordering = ("name",)
        constraints = RULE_CONSTRAINTS

    def __str__(self) -> str:
        return self.name

    def as_options(self) -> dict[str, Any]:
        """The options as Rule.from_options takes them."""
        found = {option: getattr(self, option) for option in OPTIONS if option not in ("rate", "rates")}
        rates = split(self.rate)
        found |= {"rates": rates} if len(rates) > 1 else {"rate": rates[0] if rates else None}
        fields = (field for field in self._meta.concrete_fields if isinstance(field, NamesField))
        lists = {field.name: field.read(getattr(self, field.name)) for field in fields}
        return {**found, **lists, "timezone": self.timezone or None}

    def as_rule(self) -> Rule:
        """The core rule that this row describes; raises InvalidRule or InvalidRate."""
        return check_allowed(Rule.from_options(self.name, self.as_options()))

    @property
    def fault(self) -> str | None:
        """Why this row is not in force; None when it makes sense."""
        try:
            self.as_rule()
        except (InvalidRule, InvalidRate) as error:
            return sentence(self.name, error)
        return None

    @property
    def meaning(self) -> str:
        """What the rule means, in words; why it is not in force when it makes no sense."""
        fault = self.fault
        return f"Not in force: {fault}" if fault else describe(self.as_rule())

    def clean(self) -> None:
        check_texts(self)
        try:
            self.as_rule()
        except InvalidRate as error:
            if is_tidy(self.rate):  # else the rate's field says so itself
                raise ValidationError({"rate": str(error)}) from error
        except InvalidRule as error:
            raise ValidationError({error.option or "algorithm": sentence(self.name, error)}) from error
        if self.action == "delay" and self.max_delay is None:
            raise ValidationError({"max_delay": "A call that is delayed keeps its worker waiting: say for how long."})
