"""manage.py throttle_costs: print the costs of requests by route, the most expensive route first."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Final

from django_throttle.console.route_costs import HOURS, RouteCost, fetch, in_short, most_expensive
from django_throttle.core.texts import translatable
from django_throttle.costs.meter import MEASURES
from django_throttle.management import ShellCommand, add_most, remote_store
from django_throttle.translated import gettext, ngettext

IN_MEMORY: Final = translatable("only each process knows what its requests used; see the page of costs there.")


class Command(ShellCommand):
    """Command that prints the admin's page of costs."""

    help = (
        f"Print how many requests each route had in the last {HOURS} hours, and of their queries, rows, times and "
        "bytes the mean and what 50, 95 and 99 % of the requests do not exceed. Processes report every ten seconds."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--by", choices=MEASURES, default="wall_ms", help="most of this first (default wall_ms)")
        add_most(parser, "routes", 20)
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *, by: str, most: int, **options: object) -> None:
        routes = most_expensive(fetch(remote_store(IN_MEMORY)), by)[:most]
        if options["json"]:
            self.stdout.write(json.dumps({"hours": HOURS, "routes": [route.as_json() for route in routes]}, indent=2))
            return
        if not routes:
            self.stdout.write(gettext("No requests were measured in the last {hours} hours.", hours=HOURS))
        for route in routes:
            self.stdout.write("\n".join(_lines(route)))


def _lines(route: RouteCost) -> list[str]:
    requests = ngettext("{count:,} request", "{count:,} requests", route.calls)
    head = gettext("{scope}: {requests}", scope=route.scope, requests=requests)
    names = f"  {'':16}{gettext('mean'):>12}{'50 %':>12}{'95 %':>12}{'99 %':>12}"
    rows = [f"  {name:16}{''.join(f'{in_short(number):>12}' for number in route.spreads[name])}" for name in MEASURES]
    return [head, names, *rows]
