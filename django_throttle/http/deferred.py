"""Deferred calls: the 202 in place of a view's answer, and the status page of the task.

Nothing is stored here. The signed URL of the page identifies the task, and the site's own queue knows its state.
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
    deferral_tasks,
    queue_named,
    queue_of,
)
from django_throttle.later.task_budget import budget_of, takes_slot
from django_throttle.local.shared_clock import shared_clock, shared_now
from django_throttle.runtime import LogThrottle

Arguments = tuple[Sequence[Any], Mapping[str, Any]]
Payload = Callable[..., Any] | None

TEMPLATE: Final = "django_throttle/later.html"
SALT: Final = "django_throttle.deferred"
SIGNATURE_BYTES: Final = 32
#: Seconds after the start time for which the status page of a task exists.
STATUS_SECONDS: Final = 7 * 86_400.0
#: Retry-After of a task that waits for a slot.
SLOT_POLL_SECONDS: Final = 5
#: Minimum and maximum of the seconds after which the page reloads.
POLL_SECONDS: Final = (1, 10)
UNROUTED: Final = (
    "a call was to be deferred, but its status page has no address: add "
    'path("later/", include("django_throttle.urls")) to urlpatterns'
)
#: Methods that only ask about a resource.
NEVER_DEFERRED: Final = ("HEAD", "OPTIONS")
#: Attribute of a decorator ``@throttle`` with its deferral.
DEFERRAL: Final = "throttle_deferral"
SKIPPED_GUARD: Final = (
    "@throttle(%r, defer_to=…) stands above %s, which a deferred call would skip: such calls are refused; "
    "put @throttle below it, next to the function, or around the class"
)
logger = logging.getLogger("django_throttle")
_log_throttle: Final = LogThrottle()
_json: Final = json.JSONEncoder(default=str).encode


@dataclass(frozen=True, slots=True, eq=False)
class Deferral:
    """Deferral of a view's calls to a task. ``payload`` makes the task's arguments from the view's."""

    rule: str
    task: Any
    payload: Payload
    show_result: bool
    #: Name of a decorator between @throttle and the view that may refuse a call. Then no call is deferred.
    guard: str | None = None
    #: Guards of all views with this deferral.
    guards: set[str] = field(default_factory=set)

    def below(self, view: object) -> Deferral:
        """Return the deferral of a decorator around this view."""
        guard = guard_in(view)
        if guard is None:
            return self
        self.guards.add(guard)
        return replace(self, guard=guard)

    def defers_to_slots(self) -> bool:
        """Return True if calls without a free slot of a concurrency rule are deferred."""
        rule = (rulebook.loaded() or rulebook.current()).by_name(self.rule)
        return rule is not None and rule.defers_to_slots

    def _may_defer(self, request: HttpRequest) -> bool:
        if self.guard is not None and _log_throttle.try_acquire(f"{self.rule} {self.guard}"):
            logger.error(SKIPPED_GUARD, self.rule, self.guard)
        return self.guard is None and request.method not in NEVER_DEFERRED

    async def answer_waiting(
        self,
        io: Io,
        caller: RequestCaller,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        call: Call,
        refused: Decision,
    ) -> HttpResponse:
        """Enqueue the task of a call without a free slot, which waits for a slot, and return a 202.

        Return a 429 if too many tasks wait, or if the call must not be deferred.
        """
        request = django_request(caller.subject)
        if self._may_defer(request):
            line_up = partial(self._line_up, caller, args, kwargs)
            queued = await io.call(line_up, lambda: sync_to_async(line_up)())  # noqa: PLW0108
            if queued is not None:
                prefix, enqueued, place = queued
                queue, now = queue_of(self.task), shared_clock.now()
                url = StatusUrl(
                    queue.name, queue.place(self.task, enqueued), enqueued.id, self.rule, now, now, self.show_result
                )
                return url.response(caller.subject, TaskState(QUEUED), prefix + url.token(caller), now, 202, place)
        await limiter.report(io, call, refused)
        return refusal(caller.subject, refused)

    def _line_up(
        self, caller: RequestCaller, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[str, Any, int] | None:
        """Enqueue the task. Return the prefix of its page's URL, its result and its place, or None if too many wait.

        Raise ImproperlyConfigured for a task that would take no slot.
        """
        budget: Any = budget_of(self.task)
        if not takes_slot(self.task, self.rule):
            raise ImproperlyConfigured(
                f"rule {self.rule!r} limits the calls in progress, so the task of defer_to must take a slot, too: put "
                f"@throttled_task({self.rule!r}, ident=…) around it"
            )
        prefix, arguments = self._prepare(caller, args, kwargs)
        rule, ident = budget.slot_of(*arguments)
        lease_key = rule.id, ident
        if (queued := task_slots.line_up(self.task, lease_key, *arguments, rule.max_waiting_calls)) is None:
            return None
        if budget.has_slot(*arguments):  # a slot was released meanwhile
            task_slots.call_next(lease_key)
        return prefix, *queued

    async def answer_deferred(
        self, io: Io, caller: RequestCaller, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> HttpResponse | None:
        """Enqueue the task for the start time of the call's queue slot, and return a 202. Return None if it may run.

        Refuse a call that must not be deferred. If enqueuing fails, release the queue slot, and raise the error.
        """
        request = django_request(caller.subject)
        state = state_of(request)
        queue_slot = state.take_queue_slot(self.rule)
        if queue_slot is None:
            return None
        if not self._may_defer(request):
            await _release(io, state, queue_slot)
            decision = _refused_decision(queue_slot)
            state.note(decision)
            return refusal(caller.subject, decision)
        prepare = partial(self._prepare_for_queue_slot, queue_slot, caller, args, kwargs)
        try:
            # sync_to_async() takes longer than the preparation, so it is called on an event loop only.
            prefix, arguments, is_own = await io.call(prepare, lambda: sync_to_async(prepare)())  # noqa: PLW0108
            queue = queue_of(self.task)
            enqueued = await io.call(*queue.enqueue(self.task, queue_slot, *arguments, is_own=is_own))
        except Exception:
            await _release(io, state, queue_slot)
            raise
        place, now = queue.place(self.task, enqueued), shared_clock.now()
        url = StatusUrl(queue.name, place, enqueued.id, queue_slot.rule, queue_slot.at, now, self.show_result)
        return url.response(caller.subject, TaskState(QUEUED), prefix + url.token(caller), now, 202)

    def _prepare_for_queue_slot(
        self, queue_slot: QueueSlot, caller: RequestCaller, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[str, Arguments, bool]:
        """Prepare, and return True last if a run of the task would reserve a queue slot of the same rule and ident."""
        prefix, arguments = self._prepare(caller, args, kwargs)
        budget = budget_of(self.task)
        return prefix, arguments, budget is not None and budget.has_queue_slot(queue_slot, arguments)

    def _prepare(
        self, caller: RequestCaller, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[str, Arguments]:
        """Return the prefix of the status page's URL, and the task's arguments.

        Raise ImproperlyConfigured if the URLconf has no status page, and TypeError for an invalid payload.
        """
        urlconf = getattr(django_request(caller.subject), "urlconf", None)
        return pages_address(urlconf), self._arguments(caller.subject, args, kwargs)

    def _arguments(self, request: object, args: Sequence[object], kwargs: Mapping[str, object]) -> Arguments:
        """Return the task's arguments. Raise TypeError for an invalid payload."""
        if self.payload is None:
            return (), {}
        payload: Any = self.payload(request, *args, **kwargs)
        task_args, task_kwargs = payload if isinstance(payload, tuple) and len(payload) == 2 else ((), payload)
        has_names = isinstance(task_kwargs, Mapping) and all(isinstance(name, str) for name in task_kwargs)
        if has_names and isinstance(task_args, list | tuple):
            return task_args, dict(task_kwargs)
        expected = "a dict of the task's keyword arguments, or a tuple of a list of its arguments and such a dict"
        kind = type(payload).__name__
        raise TypeError(f"the payload of a call that rule {self.rule!r} defers is {expected}, not {kind}")


async def _release(io: Io, state: RequestState, queue_slot: QueueSlot) -> None:
    await correct(io, state.ledger.refund_pairs({(queue_slot.rule, queue_slot.ident)}))


def _refused_decision(queue_slot: QueueSlot) -> Decision:
    """Return the decision of the queue slot, changed to a refusal for a call that must not be deferred."""
    outcomes = queue_slot.decision.outcomes if queue_slot.decision is not None else ()
    return combine_outcomes(
        tuple(
            [
                outcome._replace(
                    allowed=False,
                    retry_after=outcome.deferred_for,
                    remaining=0,
                    reason=Reason.EXCEEDED,
                    deferred_for=0.0,
                )
                if outcome.rule == queue_slot.rule and outcome.deferred_for
                else outcome
                for outcome in outcomes
            ]
        )
    )


def deferral(rule: str, task: object, payload: object, show_result: bool) -> Deferral | None:
    """Return the deferral for options of @throttle, or None without ``task``. Raise TypeError for invalid options."""
    if task is None:
        if payload is not None or show_result:
            raise TypeError("payload and show_result need defer_to, the task that does the work later")
        return None
    if payload is not None and not callable(payload):
        raise TypeError(f"payload is a function of the request that makes the task's arguments, not {payload!r:.80}")
    if inspect.isfunction(task):
        queue_of(task)  # raises TypeError; other objects may be lazy proxies of Celery tasks
    deferral_tasks.append(task)
    new = Deferral(rule, task, payload, show_result)
    deferrals.append(new)
    return new


#: Deferrals of all imported views.
deferrals: Final[list[Deferral]] = []


class StatusUrl(NamedTuple):
    """Content of a status page's URL: queue, backend or task name, id, rule, start time and time of the call.

    It is signed for its caller: the user if one is logged in, else the address.
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
        """Return the content of a token, or None if its signature is invalid for the caller, or if it has expired."""
        try:
            decoded = signing.b64_decode(token.encode())
            signature, packed = decoded[:SIGNATURE_BYTES], decoded[SIGNATURE_BYTES:]
            if not any(hmac.compare_digest(signature, _signature(key, caller, packed)) for key in _keys()):
                return None
            starts_at, asked_at, shows, queue, id_, place, rule = packed.decode().split("\n", 6)
            url = cls(queue, place, id_, rule, float(starts_at), float(asked_at), bool(shows))
        except ValueError:
            return None
        return url if shared_clock.now() < url.starts_at + STATUS_SECONDS else None

    def token(self, caller: RequestCaller) -> str:
        """Return the signature and the signed content, a line for each field."""
        shows = "shows" if self.show_result else ""
        numbers = f"{self.starts_at}\n{self.asked_at}\n{shows}"
        packed = f"{numbers}\n{self.queue}\n{self.id}\n{self.place}\n{self.rule}".encode()
        return signing.b64_encode(_signature(_keys()[0], caller, packed) + packed).decode()

    def task_state(self) -> TaskState | None:
        """Return the state of the task in its queue, or None if the queue does not know the task."""
        task = queue_named(self.queue).state_of(self.place, self.id)
        if task is None:
            return None
        state = QUEUED if task.state == UNKNOWN and shared_clock.now() < self.starts_at else task.state
        return TaskState(state, task.result if self.show_result else None)

    @property
    def waits_for_slot(self) -> bool:
        """True if the task waits for a slot, so that its start time is unknown."""
        return self.starts_at == self.asked_at

    def response(
        self, request: HttpRequest, task: TaskState, address: str, now: float, code: int = 200, place: int | None = None
    ) -> HttpResponse:
        """Return the page as HTML or JSON, as the client prefers, never cached. ``place`` is the place in the line."""
        wait = max(0.0, self.starts_at - now)
        content: dict[str, object] = {"state": task.state}
        if task.state == QUEUED and self.waits_for_slot:
            content |= {"position": place, "starts_at": None}
        elif task.state == QUEUED:
            rules = rulebook.loaded()
            content["position"] = position(rules.by_name(self.rule) if rules else None, wait)
            content["starts_at"] = datetime.fromtimestamp(self.starts_at, UTC).isoformat(timespec="milliseconds")
        elif task.state == DONE and self.show_result:
            content["result"] = task.result
        if prefers_html(request.META.get("HTTP_ACCEPT", "")):
            response = HttpResponse(self._page(content, wait, address), None, code)
        else:
            response = HttpResponse(_json(content).encode(), "application/json", code)
        headers = response.headers  # faster than the argument of HttpResponse
        headers["Cache-Control"] = "no-store"
        headers["Vary"] = "Accept, Cookie, Authorization"
        if code == 202:
            headers["Location"] = address
        if task.state == QUEUED:
            headers["Retry-After"] = str(SLOT_POLL_SECONDS if self.waits_for_slot else max(1, ceil(wait)))
        return response

    def _page(self, content: dict[str, Any], wait: float, address: str) -> str:
        has_ended = content["state"] in (DONE, FAILED)
        shortest, longest = POLL_SECONDS
        total = max(self.starts_at - self.asked_at, 0.001)
        percent = {QUEUED: min(99, int(100 * (1 - wait / total))), DONE: 100}.get(content["state"])
        if content["state"] == QUEUED and self.waits_for_slot:
            percent = None
        context = content | {
            "address": address,
            "look_again": None if has_ended else min(longest, max(shortest, ceil(wait))),
            "percent": percent,
            "waits_for_slot": self.waits_for_slot,
            "wait": wait_in_words(ceil(wait), get_language()) if wait else None,
            "when": shared_now() + timedelta(seconds=wait + 59) if wait >= 60 else None,
        }
        return str(get_template(TEMPLATE).render(context))


@csrf_exempt  # the page changes nothing, so a POST gets a 405, not a 403
@require_safe
def status_page(request: HttpRequest, token: str) -> HttpResponse:
    """Show the state of a deferred call to its caller. Raise Http404 for others."""
    url = StatusUrl.of(token, RequestCaller(_with_user(request)))
    task = url.task_state() if url is not None else None
    if url is None or task is None:
        raise Http404("there is no such call, or it is somebody else's")
    rulebook.current()
    return url.response(request, task, request.get_full_path(), shared_clock.now())


def _signature(key: bytes, caller: RequestCaller, packed: bytes) -> bytes:
    """Return the signature for a caller. The token does not name the caller."""
    ident = caller.ident("user_or_ip") or "nobody"
    return hmac.digest(key, f"{len(ident)}:{ident}".encode() + packed, "sha256")


@lru_cache(maxsize=1)
def _keys() -> tuple[bytes, ...]:
    """Return the keys of SECRET_KEY and its fallbacks. They are cached, because deriving takes longer than signing."""
    secrets = settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS
    return tuple([salted_hmac(SALT, "", secret, algorithm="sha256").digest() for secret in secrets])


@receiver(setting_changed, dispatch_uid="django_throttle.deferred")
def _forget(*, setting: str, **_: object) -> None:
    if setting in ("SECRET_KEY", "SECRET_KEY_FALLBACKS"):
        _keys.cache_clear()


def _with_user(request: HttpRequest) -> HttpRequest:
    """Return the request. If Django knows no user, authenticate it by REST framework's default classes."""
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


def pages_address(urlconf: str | None = None) -> str:
    """Return the URL of status pages before the token. Raise ImproperlyConfigured if the URLconf has no such page."""
    return _pages_address(get_resolver(urlconf), urlconf, get_script_prefix(), get_language())


@lru_cache(maxsize=64)
def _pages_address(resolver: object, urlconf: str | None, *_: object) -> str:
    """Return the URL, cached by everything it depends on, because reverse() is slow."""
    try:
        return reverse("django_throttle:later", urlconf, ["token"]).removesuffix("token")
    except NoReverseMatch:
        raise ImproperlyConfigured(UNROUTED) from None
