"""A view of REST framework finishes by itself where no other door attends to its request."""

from __future__ import annotations

import asyncio
from functools import lru_cache, wraps
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest

from django_throttle.exceptions import Refused
from django_throttle.facts import Who
from django_throttle.http.finalize import aabandon, abandon, abandon_soon, afinish, alet_go, finish, finish_soon
from django_throttle.http.request_state import attend, keep, plain, visit_of


def attend_by(view: Any, request: Any, who: Who) -> None:
    """Have this view finish its response, or abandon the request with the error that it lets pass.

    An asynchronous one makes its responses on the event loop, without awaiting: so what it owes is settled as soon
    as its method has returned.
    """
    visitor = plain(request)
    if not hasattr(view, "finalize_response") or not attend(visitor, who):
        return
    finalize, handle = view.finalize_response, view.handle_exception

    def finalized(*args: Any, **kwargs: Any) -> Any:
        response = finalize(*args, **kwargs)
        visit_of(visitor).costs.clear()  # whoever calls a view with this request again makes another call
        return (finish_soon if _must_not_wait(visitor) else finish)(visitor, response)

    def handled(error: Exception) -> Any:
        try:
            return handle(_as_framework_says(visitor, error))
        except BaseException as raised:
            (abandon_soon if _must_not_wait(visitor) else abandon)(visitor, raised)
            raise

    view.finalize_response, view.handle_exception = finalized, handled
    kind: Any = type(view)
    if _is_async(kind):
        _settle_by_method(view, request.method.lower(), visitor)


def _as_framework_says(visitor: HttpRequest, error: Exception) -> Exception:
    """What a view has called was refused, and it let that pass: so is the request."""
    if not isinstance(error, Refused):
        return error
    from django_throttle.drf.rules import exception_of

    keep(visitor, error.decision)
    return exception_of(error.decision)


def _settle_by_method(view: Any, method: str, visitor: HttpRequest) -> None:
    answer = getattr(view, method, None)
    if answer is None:
        return
    awaited = answer if iscoroutinefunction(answer) else sync_to_async(answer)

    @wraps(answer)
    async def answered(*args: Any, **kwargs: Any) -> Any:
        try:
            return await afinish(visitor, await awaited(*args, **kwargs))
        except Exception:  # the view will make a response of it, whose status nobody knows yet
            await alet_go(visitor)
            raise
        except BaseException as error:
            await aabandon(visitor, error)
            raise

    setattr(view, method, answered)


@lru_cache(maxsize=512)
def _is_async(view: type[Any]) -> bool:
    return bool(getattr(view, "view_is_async", False))


def _must_not_wait(visitor: HttpRequest) -> bool:
    if not visit_of(visitor).owes:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
