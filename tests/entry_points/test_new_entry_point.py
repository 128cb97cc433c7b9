"""An entry point of a site's own protocol, made by public means, draws on the budgets of all others."""

from typing import Any

from django.test import Client

from django_throttle import limiter
from django_throttle.identity import client_address
from django_throttle.identity.call import Call
from django_throttle.identity.caller import IdentCaller
from tests.doors import BOTH, Enforce
from tests.entry_points import site


class MailServer:
    """Answers lines of SMTP. Its calls have the event ``request`` and the scope of a view."""

    def receive(self, address: str) -> str:
        caller = IdentCaller(f"ip:{client_address({'type': 'smtp', 'client': (address, 25)})}")
        decision = limiter.decide(Call("view", ("request",), caller))
        return "250 OK" if decision.allowed else f"450 try again in {decision.retry_after:g} s"


@BOTH
def test_another_protocol_and_a_view_share_a_budget(enforce: Enforce, settings: Any) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = site.__name__, site.MIDDLEWARE
    enforce(api={"rate": "2/min", "algorithm": "fixed_window", "key": "ip", "scopes": ["view"]})
    view = "/middleware/ok"
    answers = [MailServer().receive("127.0.0.1"), Client().get(view).status_code]
    answers += [MailServer().receive("127.0.0.1"), Client().get(view).status_code, MailServer().receive("192.0.2.1")]
    assert answers == ["250 OK", 200, "450 try again in 60 s", 429, "250 OK"]
