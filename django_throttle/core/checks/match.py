"""Whom and what a rule is about: options that must fit its events and its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_throttle.exceptions import InvalidRule

if TYPE_CHECKING:
    from django_throttle.core.rule import Rule


def _http(rule: Rule) -> None:
    """Nothing but an HTTP request has a method and a status: other events would silently count never, or always."""
    if rule.methods and rule.events not in (("request",), ("inflight",)):
        raise InvalidRule("methods belong to rules of HTTP requests (request or inflight) alone", "methods")
    if rule.count_on and rule.events != ("request",):
        raise InvalidRule("answers that count belong to rules of HTTP requests alone", "count_on")


def _audience(rule: Rule) -> None:
    if rule.key == "user" and rule.audience == ("anonymous",):
        raise InvalidRule("who is not logged in has no budget under the key user, so it would limit nobody", "audience")


MATCH_CHECKS: Final = (_http, _audience)
