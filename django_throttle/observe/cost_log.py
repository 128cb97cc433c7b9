"""Log lines and the signal ``costly`` for requests that use more than ``LOG_COST_ABOVE`` allows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from django_throttle.conf import conf
from django_throttle.costs.meter import MEASURES, Meter, QueryUsage
from django_throttle.observe.reports import send
from django_throttle.runtime import LogThrottle
from django_throttle.signals import costly

costs_log = logging.getLogger("django_throttle.costs")
MAX_MODELS: Final = 5  # slowest models logged for each database

log_throttle = LogThrottle(seconds=10.0)


def report(scope: str, method: str, meter: Meter) -> None:
    """Send the signal for a request that used too much, and log it at most once in ten seconds for each scope."""
    limits = conf().LOG_COST_ABOVE
    above = [name for name, limit in limits.items() if name in MEASURES and getattr(meter, name) > limit]
    if not above:
        return
    send(costly, scope=scope, meter=meter, above=tuple(above))
    if (left_out := log_throttle.left_out(scope)) is not None:
        fields = {"scope": scope, "method": method, **meter.measures, "above": above, "left_out": left_out}
        costs_log.warning(
            "a request used more than LOG_COST_ABOVE allows (%s): scope %r, %s; %d queries, %d rows, %.1f ms in "
            "databases (%s), %.1f ms in all, %.1f ms of CPU, %d bytes; left out since the last such line: %d",
            ", ".join(f"{name} over {limits[name]}" for name in above), scope, method, meter.queries, meter.rows,
            meter.db_ms, "; ".join(_databases(meter)) or "none", meter.wall_ms, meter.cpu_ms, meter.bytes, left_out,
            extra=fields,
        )  # fmt: skip


def _databases(meter: Meter) -> Iterator[str]:
    """Yield a description of each database, with its slowest models."""
    for alias, database in meter.databases.items():
        models = sorted(database.models.items(), key=lambda pair: -pair[1].seconds)[:MAX_MODELS]
        of_models = "".join(f", {label} {_words(use)}" for label, use in models)
        yield f"{alias}: {_words(database)}{of_models}"


def _words(use: QueryUsage) -> str:
    return f"{use.queries} queries {use.rows} rows {use.seconds * 1e3:.1f} ms"
