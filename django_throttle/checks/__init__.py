"""System checks: one number for each way in which the settings or the rules can be wrong.

E001–E006 are about the dictionary and its rules, E01x about texts and choices, E02x about numbers, E03x about
what must fit together; W00x are things that work but should be known.
"""

from django_throttle.checks.doors import (
    check_delays,
    check_inflight,
    check_middleware,
    check_names,
    check_origins,
    check_rates,
    check_schema,
    check_waiting_rows,
)
from django_throttle.checks.settings import (
    check_addresses,
    check_rows,
    check_server,
    check_settings,
    check_shadow,
    check_shares,
    check_store,
)

__all__ = [
    "check_addresses",
    "check_delays",
    "check_inflight",
    "check_middleware",
    "check_names",
    "check_origins",
    "check_rates",
    "check_rows",
    "check_schema",
    "check_server",
    "check_settings",
    "check_shadow",
    "check_shares",
    "check_store",
    "check_waiting_rows",
]
