"""Sends what this process has recorded to Redis, every two seconds and at the end."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from django_throttle.agent import StoreJob
from django_throttle.console.recording import redis_keys
from django_throttle.console.recording.bounded_sample import RANKS, BoundedSample
from django_throttle.console.recording.cells import HOUR, MINUTE, Cell
from django_throttle.console.recording.heavy_hitters import MAX_IDENTS, MAX_MONTH_IDENTS, HeavyHitters
from django_throttle.console.recording.process_rules import RulesReporter
from django_throttle.console.recording.recorder import DecisionSample, Records, recorder
from django_throttle.console.recording.redis_keys import HOURS, MINUTES
from django_throttle.stores import RedisStore
from django_throttle.stores.redis.failures import raise_first
from django_throttle.stores.redis.transport import batches

Sending = tuple[str, list[str], list[Any]]  # a script's name, keys and arguments

MAX_MINUTES: Final = 60  # minutes of a rule in one call
MAX_STATE_CHARS: Final = 1000  # of a sample's state


class RecordFlusher:
    """Sends the records of this process. Used by one thread, and at exit.

    Each sending has a number. A sending without a reply is repeated under its number, so that nothing counts twice.
    Until then, the recorder keeps records within its bounds. A killed process loses the records it has not sent.
    """

    seconds = 2.0  #: interval

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self._uid, self._number = secrets.token_hex(6), 0
        self._pending: list[Sending] = []
        self._report_rules = RulesReporter(store, self._uid)

    def __call__(self) -> None:
        """Repeat failed sendings, and send new records. Raise StoreError, and keep what failed for the next call."""
        self._report_rules()
        if self._pending:
            self._send()
        self.send(recorder.take())

    def end(self) -> None:
        """Send all records, because the process ends. Raise StoreError."""
        self()
        self._report_rules.end()

    def send(self, records: Records) -> None:
        self._number += 1
        self._pending = list(self._sendings(records))
        self._send()

    def _send(self) -> None:
        errors: list[Exception] = []
        for batch in list(batches(self._pending)):
            replies = self.store.pipeline(batch)
            pairs = list(zip(batch, replies, strict=True))
            failed = [sending for sending, reply in pairs if isinstance(reply, Exception)]
            errors += [reply for reply in replies if isinstance(reply, Exception)]
            self._pending = [*failed, *self._pending[len(batch) :]]
            if failed:
                break
            for (name, keys, args), reply in pairs:
                if name == "sample" and not isinstance(reply, Exception):
                    bound, *full = state_of(reply)
                    recorder.limit(args[0].partition(":")[0], int(keys[1].rpartition(":")[2]), bound, full)
        raise_first(errors)

    def _sendings(self, records: Records) -> Iterator[Sending]:
        by_rule: dict[str, dict[int, Cell]] = {}
        for (rule, minute), cell in records.cells.items():
            by_rule.setdefault(rule, {})[minute] = cell
        rankings = dict(records.rankings)
        for rule, cells in by_rule.items():
            remaining, part = iter(cells.items()), 0
            while batch := list(islice(remaining, MAX_MINUTES)):
                hour, part = batch[0][0] // HOUR * HOUR, part + 1
                yield self._of_rule(rule, f"{part}", batch, hour, rankings.pop((rule, hour), None))
        for number, ((rule, hour), ranking) in enumerate(rankings.items()):
            yield self._of_rule(rule, f"t{number}", [], hour, ranking)
        for (stratum, slot), sample in records.samples.items():
            if sample.entries:
                yield self._of_sample(stratum, slot, sample)

    def _of_rule(
        self, rule: str, part: str, cells: list[tuple[int, Cell]], hour: int, ranking: HeavyHitters | None
    ) -> Sending:
        """Return the sending of a rule's cells and ranking. ``part`` distinguishes the sendings of a rule."""
        newest, field = max([minute for minute, _ in cells], default=hour), f"{redis_keys.rule_tag(rule)}:{part}"
        lifetimes = redis_keys.MINUTES_TTL_MS, redis_keys.HOURS_TTL_MS, redis_keys.SEEN_TTL_MS
        args: list[object] = [field, self._number, *lifetimes]
        args += [rule.encode("utf-8", "surrogatepass"), newest, len(cells)]
        names = [f"rec:seen:{self._uid}", "rec:rules"]
        for minute, cell in cells:
            names += [MINUTES.name(rule, minute), HOURS.name(rule, minute)]
            args += [minute % MINUTES.key // MINUTE, minute % HOURS.key // HOUR, len(cell)]
            args += [number for pair in cell.items() for number in pair]
        if ranking is not None:
            ranking.cut()
            names += [redis_keys.ranking_name(rule, hour), HOURS.name(rule, hour)]
            args += [redis_keys.RANKING_TTL_MS, redis_keys.ranking_field(hour)]
            args += [MAX_IDENTS, MAX_MONTH_IDENTS, ranking.error]
            for ident, count in ranking.counts.items():
                args += [redis_keys.packed_tag(ident), count]
        return "record", list(map(self.store.process_key, names)), args

    def _of_sample(self, stratum: str, slot: int, sample: BoundedSample[DecisionSample]) -> Sending:
        names = [f"rec:seen:{self._uid}"]
        for number in (slot, slot - redis_keys.RECENT_SLOTS):
            name = redis_keys.sample_name(stratum, number)
            names += [name, f"{name}:level"]
        args: list[object] = [f"{stratum}:{slot % redis_keys.SLOTS}", self._number]
        args += [redis_keys.MINUTES_TTL_MS, redis_keys.SEEN_TTL_MS]
        args += [redis_keys.MAX_RECENT_ENTRIES[stratum], redis_keys.MAX_OLDER_ENTRIES[stratum]]
        args += [" ".join(map(str, (sample.bound, *sample.full)))]
        args += [rank.to_bytes(4, "big") + packed(decision) for rank, decision in sample.entries]
        return "sample", list(map(self.store.process_key, names)), args


def records_job(store: RedisStore) -> StoreJob:
    flusher = RecordFlusher(store)
    return StoreJob("sending records of decisions", flusher.seconds, flusher, flusher.end)


def state_of(reply: object) -> list[int]:
    """Return the bound of a sample and its full ranks from the reply of sample.lua."""
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
    bound, *full = map(int, re.findall(r"\d+", text[:MAX_STATE_CHARS]) or [RANKS])
    return [min(RANKS, max(1, bound)), *full]


def packed(decision: DecisionSample) -> bytes:
    """Return a decision of a sample as JSON, with tags in place of idents."""
    tags = {redis_keys.tag_of(ident): rules for ident, rules in decision.idents.items()}
    fields = [round(decision.at, 6), *decision[1:-1], tags]
    return json.dumps(fields, separators=(",", ":")).encode()
