"""The pure core: no Django, no Redis, no clock, no await."""

from django_throttle.core.commands import Charge, charge, charges_of
from django_throttle.core.decision import Decision, Lease, Outcome, Reason
from django_throttle.core.overrides import Override
from django_throttle.core.rate import Rate
from django_throttle.core.rule import Rule

__all__ = ["Charge", "Decision", "Lease", "Outcome", "Override", "Rate", "Reason", "Rule", "charge", "charges_of"]
