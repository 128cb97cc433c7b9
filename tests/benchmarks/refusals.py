"""Refusals that are remembered: how many a second, and what they ask of Redis."""

from __future__ import annotations

from collections.abc import Iterator

from redis import Redis

from django_throttle.core import Rule
from django_throttle.core.commands import charges_of
from django_throttle.limiter import Limiter
from django_throttle.stores import RedisStore
from tests.benchmarks.player import Play, Subject, company
from tests.benchmarks.table import Row

CALLS = 20_000
SECTION = "deny cache"


def whole(url: str) -> Play:
    """``Limiter.acquire``, from the ident to the decision."""
    limiter = _limiter(url)

    def play(calls: int) -> None:
        for _ in range(calls):
            limiter.acquire("user:1")

    return play


def alone(url: str) -> Play:
    """The cache itself, as a flow asks it."""
    limiter = _limiter(url)
    (rule,), denials = limiter.rules, limiter.store.denials
    charges = charges_of(rule, "user:1", 1)

    def play(calls: int) -> None:
        for _ in range(calls):
            denials.find(charges)

    return play


def rows(url: str, rounds: int) -> Iterator[Row]:
    subjects = [Subject("Limiter.acquire", "refusals", "whole"), Subject("the cache itself", "refusals", "alone")]
    with company(subjects, url) as players, Redis.from_url(url) as server:
        for player in players:
            took, commands, seconds = [], 0, 0.0
            for _ in range(rounds):
                before = server.info("stats")["total_commands_processed"]
                took.append(player.tell(CALLS))  # seconds a call
                commands += server.info("stats")["total_commands_processed"] - before - 1
                seconds += took[-1] * CALLS
            yield Row(SECTION, player.subject.name, 1 / sorted(took)[rounds // 2], "/s", asked=300_000, sense="≥")
            yield Row(SECTION, f"{player.subject.name}: Redis commands a second", commands / seconds, "/s")


def _limiter(url: str) -> Limiter:
    limiter = Limiter((Rule("refused", "1/day"),), RedisStore(url, deadline=5))
    limiter.acquire("user:1")
    limiter.acquire("user:1")
    return limiter
