"""What a rule of the admin may name: only what whoever writes the settings has put there."""

from __future__ import annotations

from django_throttle.conf import conf
from django_throttle.core import Rule
from django_throttle.core.checks.key import functions, parts
from django_throttle.exceptions import InvalidRule
from django_throttle.rulebook.sources import declared


def check_allowed(rule: Rule) -> Rule:
    """The rule itself; raises InvalidRule for a function, or a tenant, that the site's settings never name.

    A function will be imported and called for every client, so whoever edits rules may only choose among those
    that rules in settings use.
    """
    _check_functions(rule, "key", functions(rule.key))
    _check_functions(rule, "cost", (rule.cost,) if isinstance(rule.cost, str) else ())
    if not conf().TENANT:
        _check_no_tenant(rule)
    return rule


def _check_functions(rule: Rule, option: str, paths: tuple[str, ...]) -> None:
    known = {path for given in declared(option) for path in parts(given)} if paths else ()
    for path in paths:
        if path not in known:
            message = f"rule {rule.name!r}: the {option} {path!r} is used by no rule in settings; name it there first"
            raise InvalidRule(message, option)


def _check_no_tenant(rule: Rule) -> None:
    for option, asked in (("key", parts(rule.key)), ("audience", rule.audience)):
        if any(one.partition(":")[0] == "tenant" for one in asked):
            raise InvalidRule(f"rule {rule.name!r}: the setting TENANT does not say who the tenant is", option)
