"""Work that is done later: the 202 in place of a view's answer, and the page that says how far the work is.

Nothing is kept here: the address of the page says where the task is, signed, and the site's own queue knows the rest.
"""

from __future__ import annotations

import hmac
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from math import ceil
from typing import Any, Final, NamedTuple

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core import signing
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import get_template
from django.urls import NoReverseMatch, get_resolver, get_script_prefix, reverse
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.translation import get_language
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from django_throttle import limiter, rulebook
from django_throttle.core import Decision, Reason
from django_throttle.core.decide import correct
from django_throttle.core.decision import combine_outcomes
from django_throttle.core.io import Io
from django_throttle.http.problem_details import wait_in_words
from django_throttle.http.refusal import prefers_html, refusal
from django_throttle.http.request_state import RequestState, django_request, state_of
from django_throttle.http.view_layers import guard_in
from django_throttle.identity import RequestCaller
from django_throttle.identity.call import Call
from django_throttle.later import task_slots
from django_throttle.later.queue_slots import QueueSlot, position
from django_throttle.later.site_queues import (
    DONE,
    FAILED,
    QUEUED,
    UNKNOWN,
    TaskState,
    deferred_to,
    queue_named,
    queue_of,
)
from django_throttle.later.task_budget import budget_of, takes_slot
from django_throttle.rulebook.snapshot import wall_clock
from django_throttle.runtime import LogThrottle

Arguments = tuple[Sequence[Any], Mapping[str, Any]]
Payload = Callable[..., Any] | None

TEMPLATE: Final = "django_throttle/later.html"
SALT: Final = "django_throttle.deferred"
SIGNATURE: Final = 32  # bytes
KEPT: Final = 7 * 86_400.0  # seconds after its start time for which a task can be asked about
SLOT_SECONDS: Final = 5  # after which a client asks again that waits for a slot
POLL: Final = (1, 10)  # seconds after which the page looks again, at least and at most
UNROUTED: Final = (
    "a call was to be deferred, but its status page has no address: add "
    'path("later/", include("django_throttle.urls")) to urlpatterns'
)
# Methods that ask about the work, and do not order it.
NEVER_DEFERRED: Final = ("HEAD", "OPTIONS")
# The attribute of a decorator ``@throttle`` that has its deferral.
DEFERRAL: Final = "throttle_deferral"
PASSED_BY: Final = (
    "@throttle(%r, defer_to=…) stands above %s, which a deferred call would pass by: such calls are refused; "
    "put @throttle below it, next to the function, or around the class"
)
logger = logging.getLogger("django_throttle")
_log_throttle: Final = LogThrottle()
_json: Final = json.JSONEncoder(default=str).encode


@dataclass(frozen=True, slots=True, eq=False)
class Deferral:
    """How a view's work is done later: its task, and what makes the task's arguments of the call's.

    ``guard`` is the name of a decorator between here and the view that may refuse a call: then none is deferred.
    ``guards`` are those of all views.
    """

    rule: str
    task: Any
    payload: Payload
    show_result: bool
    guard: str | None = None
    guards: set[str] = field(default_factory=set)

    def below(self, view: object) -> Deferral:
        """Return the deferral of a decorator around this view."""
        guard = guard_in(view)
        if guard is None:
            return self
        self.guards.add(guard)
        return replace(self, guard=guard)

    def defers_to_slots(self) -> bool:
        """Return True where calls that find no slot of a concurrency rule are done later."""
        rule = (rulebook.loaded() or rulebook.current()).by_name(self.rule)
        return rule is not None and rule.defers_to_slots

    def _may_defer(self, request: HttpRequest) -> bool:
        if self.guard is not None and _log_throttle.due(f"{self.rule} {self.guard}"):
            logger.error(PASSED_BY, self.rule, self.guard)
        return self.guard is None and request.method not in NEVER_DEFERRED

    async def lined_up(
        self,
        io: Io,
        caller: RequestCaller,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        call: Call,
        refused: Decision,
    ) -> HttpResponse:
        """The 202 of a call that has found no slot, and its task enqueued to wait for one; 429 where too many wait."""
        request = django_request(caller.subject)
        if self._may_defer(request):
            line_up = partial(self._line_up, caller, args, kwargs)
            queued = await io.call(line_up, lambda: sync_to_async(line_up)())  # noqa: PLW0108
            if queued is not None:
                pages, enqueued, place = queued
                queue, now = queue_of(self.task), wall_clock()
                later = StatusUrl(
                    queue.name, queue.place(self.task, enqueued), enqueued.id, self.rule, now, now, self.show_result
                )
                return later.response(caller.subject, TaskState(QUEUED), pages + later.token(caller), now, 202, place)
        await limiter.report(io, call, refused)
        return refusal(caller.subject, refused)

    def _line_up(
        self, caller: RequestCaller, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[str, Any, int] | None:
        """Raise ImproperlyConfigured for a task that would take no slot."""
        budget: Any = budget_of(self.task)
        if not takes_slot(self.task, self.rule):
            raise ImproperlyConfigured(
                f"rule {self.rule!r} counts what is done at once, so the task of defer_to takes a slot of it, too: put "
                f"@throttled_task({self.rule!r}, ident=…) around it"
            )
        pages, given = self._asked(caller, args, kwargs)
        rule, ident = budget.slot_of(*given)
        hold = rule.id, ident
        if (found := task_slots.line_up(self.task, hold, *given, rule.max_waiting_calls)) is None:
            return None
        if budget.has_slot(*given):  # one was given back meanwhile
            task_slots.call_next(hold)
        return pages, *found

    async def answered(
        self, io: Io, caller: RequestCaller, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> HttpResponse | None:
        """The 202 where the call's queue slot has yet to come, and the task enqueued for it; None where it is due.

        A call that must not be deferred is refused instead. Whatever keeps the task from being enqueued is raised, and
        the start time given back.
        """
        request = django_request(caller.subject)
        state = state_of(request)
        queue_slot = state.take_queue_slot(self.rule)
        if queue_slot is None:
            return None
        if not self._may_defer(request):
            await _give_back(io, state, queue_slot)
            decision = _refused(queue_slot)
            state.note(decision)
            return refusal(caller.subject, decision)
        asked = partial(self._asked_of_queue_slot, queue_slot, caller, args, kwargs)
        try:
            # Wrapping takes longer than what is asked: only on an event loop.
            pages, (given, named), is_own = await io.call(asked, lambda: sync_to_async(asked)())  # noqa: PLW0108
            queue = queue_of(self.task)
            enqueued = await io.call(*queue.enqueue(self.task, queue_slot, given, named, is_own=is_own))
        except Exception:
            await _give_back(io, state, queue_slot)
            raise
        place, now = queue.place(self.task, enqueued), wall_clock()
        later = StatusUrl(queue.name, place, enqueued.id, queue_slot.rule, queue_slot.at, now, self.show_result)
        return later.response(caller.subject, TaskState(QUEUED), pages + later.token(caller), now, 202)

    def _asked_of_queue_slot(
        self, queue_slot: QueueSlot, caller: RequestCaller, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[str, Arguments, bool]:
        """The same, and whether a run of the task would reserve a queue slot of the same rule and ident."""
        pages, given = self._asked(caller, args, kwargs)
        budget = budget_of(self.task)
        return pages, given, budget is not None and budget.has_queue_slot(queue_slot, given)

    def _asked(self, caller: RequestCaller, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, Arguments]:
        """What needs to be known before the task is enqueued; raises ImproperlyConfigured without a status page."""
        urlconf = getattr(django_request(caller.subject), "urlconf", None)
        return pages_address(urlconf), self._arguments(caller.subject, args, kwargs)

    def _arguments(self, request: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Raises TypeError for what is no payload."""
        if self.payload is None:
            return (), {}
        made: Any = self.payload(request, *args, **kwargs)
        given, named = made if isinstance(made, tuple) and len(made) == 2 else ((), made)
        is_named = isinstance(named, Mapping) and all(isinstance(name, str) for name in named)
        if is_named and isinstance(given, list | tuple):
            return given, dict(named)
        wanted = "a dict of the task's keyword arguments, or a tuple of a list of its arguments and such a dict"
        raise TypeError(f"the payload of a call that rule {self.rule!r} defers is {wanted}, not {type(made).__name__}")


async def _give_back(io: Io, state: RequestState, queue_slot: QueueSlot) -> None:
    await correct(io, state.ledger.refund_pairs({(queue_slot.rule, queue_slot.ident)}))


def _refused(queue_slot: QueueSlot) -> Decision:
    """Return the decision of the queue slot as it reads for a call that must not be deferred."""
    outcomes = queue_slot.decision.outcomes if queue_slot.decision is not None else ()
    return combine_outcomes(
        tuple(
            [
                one._replace(
                    allowed=False, retry_after=one.deferred_for, remaining=0, reason=Reason.EXCEEDED, deferred_for=0.0
                )
                if one.rule == queue_slot.rule and one.deferred_for
                else one
                for one in outcomes
            ]
        )
    )


def deferral(rule: str, task: object, payload: object, show_result: bool) -> Deferral | None:
    """What @throttle was told of a view's work; None where it is not deferred. Raises TypeError."""
    if task is None:
        if payload is not None or show_result:
            raise TypeError("payload and show_result go with defer_to, the task that does the work later")
        return None
    if payload is not None and not callable(payload):
        raise TypeError(f"payload is a function of the request that makes the task's arguments, not {payload!r:.80}")
    if inspect.isfunction(task):
        queue_of(task)  # raises; a task of Celery may not have been made yet
    deferred_to.append(task)
    found = Deferral(rule, task, payload, show_result)
    deferrals.append(found)
    return found


deferrals: Final[list[Deferral]] = []  # of all views that have been imported


class StatusUrl(NamedTuple):
    """What the address of a status page says: queue, backend or task name, id, rule and start times.

    It is signed for its caller: by the user who is logged in, else by the address.
    """

    queue: str
    place: str
    id: str
    rule: str
    starts_at: float
    asked_at: float
    show_result: bool

    @classmethod
    def of(cls, token: str, caller: RequestCaller) -> StatusUrl | None:
        """None for a token that is not ours, or too old, or somebody else's."""
        try:
            decoded = signing.b64_decode(token.encode())
            signature, packed = decoded[:SIGNATURE], decoded[SIGNATURE:]
            if not any(hmac.compare_digest(signature, _signature(key, caller, packed)) for key in _keys()):
                return None
            starts_at, asked_at, shows, queue, id_, place, rule = packed.decode().split("\n", 6)
            later = cls(queue, place, id_, rule, float(starts_at), float(asked_at), bool(shows))
        except ValueError:
            return None
        return later if wall_clock() < later.starts_at + KEPT else None

    def token(self, caller: RequestCaller) -> str:
        """The signature, and what is signed: a line for each, and for the last what is left."""
        shows = "shows" if self.show_result else ""
        numbers = f"{self.starts_at}\n{self.asked_at}\n{shows}"
        packed = f"{numbers}\n{self.queue}\n{self.id}\n{self.place}\n{self.rule}".encode()
        return signing.b64_encode(_signature(_keys()[0], caller, packed) + packed).decode()

    def found(self) -> TaskState | None:
        """What the queue knows of the task; None where it does not know it."""
        found = queue_named(self.queue).find(self.place, self.id)
        if found is None:
            return None
        state = QUEUED if found.state == UNKNOWN and wall_clock() < self.starts_at else found.state
        return TaskState(state, found.result if self.show_result else None)

    @property
    def waits_for_slot(self) -> bool:
        """True where nobody knows when it starts."""
        return self.starts_at == self.asked_at

    def response(
        self, request: Any, found: TaskState, address: str, now: float, code: int = 200, place: int | None = None
    ) -> HttpResponse:
        """The page, as HTML or JSON by what the client prefers; never cached. ``place`` is its own in a line."""
        wait = max(0.0, self.starts_at - now)
        told: dict[str, object] = {"state": found.state}
        if found.state == QUEUED and self.waits_for_slot:
            told |= {"position": place, "starts_at": None}
        elif found.state == QUEUED:
            rules = rulebook.loaded()
            told["position"] = position(rules.by_name(self.rule) if rules else None, wait)
            told["starts_at"] = datetime.fromtimestamp(self.starts_at, UTC).isoformat(timespec="milliseconds")
        elif found.state == DONE and self.show_result:
            told["result"] = found.result
        if prefers_html(request.META.get("HTTP_ACCEPT", "")):
            response = HttpResponse(self._page(told, wait, address), None, code)
        else:
            response = HttpResponse(_json(told).encode(), "application/json", code)
        headers = response.headers  # one by one, as given to the response they take longer
        headers["Cache-Control"] = "no-store"
        headers["Vary"] = "Accept, Cookie, Authorization"
        if code == 202:
            headers["Location"] = address
        if found.state == QUEUED:
            headers["Retry-After"] = str(SLOT_SECONDS if self.waits_for_slot else max(1, ceil(wait)))
        return response

    def _page(self, told: dict[str, Any], wait: float, address: str) -> str:
        ends = told["state"] in (DONE, FAILED)
        least, most = POLL
        total = max(self.starts_at - self.asked_at, 0.001)
        percent = {QUEUED: min(99, int(100 * (1 - wait / total))), DONE: 100}.get(told["state"])
        if told["state"] == QUEUED and self.waits_for_slot:
            percent = None
        context = told | {
            "address": address,
            "look_again": None if ends else min(most, max(least, ceil(wait))),
            "percent": percent,
            "waits_for_slot": self.waits_for_slot,
            "wait": wait_in_words(ceil(wait), get_language()) if wait else None,
            "when": timezone.now() + timedelta(seconds=wait + 59) if wait >= 60 else None,
        }
        return str(get_template(TEMPLATE).render(context))


@csrf_exempt  # it changes nothing, and so refuses a POST by its method
@require_safe
def status_page(request: HttpRequest, token: str) -> HttpResponse:
    """How far a deferred call is: for its caller, and 404 for everybody else."""
    later = StatusUrl.of(token, RequestCaller(_with_user(request)))
    found = later.found() if later is not None else None
    if later is None or found is None:
        raise Http404("there is no such call, or it is somebody else's")
    rulebook.current()
    return later.response(request, found, request.get_full_path(), wall_clock())


def _signature(key: bytes, caller: RequestCaller, packed: bytes) -> bytes:
    """For this caller, who is not named in the token."""
    ident = caller.ident("user_or_ip") or "nobody"
    return hmac.digest(key, f"{len(ident)}:{ident}".encode() + packed, "sha256")


@lru_cache(maxsize=1)
def _keys() -> tuple[bytes, ...]:
    """That which signs, and those that did: kept, as deriving one takes longer than signing."""
    secrets = settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS
    return tuple([salted_hmac(SALT, "", secret, algorithm="sha256").digest() for secret in secrets])


@receiver(setting_changed, dispatch_uid="django_throttle.deferred")
def _forget(*, setting: str, **_: object) -> None:
    if setting in ("SECRET_KEY", "SECRET_KEY_FALLBACKS"):
        _keys.cache_clear()


def _with_user(request: HttpRequest) -> Any:
    """The request with the user that REST framework's default classes find, where Django's own finds none."""
    if RequestCaller(request).is_("authenticated") or not apps.is_installed("rest_framework"):
        return request
    from rest_framework.exceptions import APIException
    from rest_framework.views import APIView

    wrapped = APIView().initialize_request(request)
    try:
        wrapped.user  # noqa: B018 - authenticates, and notes the user on Django's request too
    except APIException:
        return request
    return wrapped


def pages_address(urlconf: Any = None) -> str:
    """What the addresses of all status pages begin with, before the token; raises ImproperlyConfigured."""
    return _pages_address(get_resolver(urlconf), urlconf, get_script_prefix(), get_language())


@lru_cache(maxsize=64)
def _pages_address(resolver: object, urlconf: Any, *_: object) -> str:
    """Kept for all that it depends on: reverse() takes longer than the rest of what is asked."""
    try:
        return reverse("django_throttle:later", urlconf, ["token"]).removesuffix("token")
    except NoReverseMatch:
        raise ImproperlyConfigured(UNROUTED) from None
