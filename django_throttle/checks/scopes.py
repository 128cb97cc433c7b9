"""Checks of where rules apply: scopes that nothing has, and places that no entry point limits."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Info
from django.urls import Resolver404, get_resolver

from django_throttle.checks.project import (
    MIDDLEWARE,
    RULE_THROTTLE,
    chooses_throttles,
    doubt_of_sockets,
    is_for_all_views,
    needs_permission,
    routes,
    scopes_without_mixin,
    socket_scopes,
    throttle_classes,
)
from django_throttle.checks.settings import (
    RawSettings,
    database_check,
    inherits,
    place_of,
    rules_of_settings,
    settings_check,
    value_of,
    warning,
)
from django_throttle.core import Rule
from django_throttle.core.options import did_you_mean, key_parts
from django_throttle.core.plans import read_plan
from django_throttle.core.rule import needs_login
from django_throttle.core.scopes import EVERYWHERE, covers, matches, split_scopes
from django_throttle.core.texts import translatable
from django_throttle.decorators import counted_by_key, decorated, free_of_charge, without_request
from django_throttle.http.request_state import NO_ROUTE, scope_of_match, view_attribute, view_scope
from django_throttle.identity.known_caller import GROUP
from django_throttle.later.site_queues import named_by_tasks
from django_throttle.limiter import named_by_transports
from django_throttle.rulebook import sources

if TYPE_CHECKING:
    from django_throttle.rulebook.coverage import HypotheticalCall

REQUEST_EVENTS: Final = frozenset(("request", "inflight"))
TASK_EVENTS: Final = ("task",)
SOCKET_EVENTS: Final = frozenset(("connect", "connection", "message", "send"))
SCOPE_HINT: Final = (
    "Write the throttle_scope of a view or of a consumer, or the name of a route. A rule that code asks for by its "
    "name, as @throttle and allows do, has that name as its scope. Consumers are found by ASGI_APPLICATION."
)
EVENTS_HINT: Final = (
    'List the events that it is to count: "request" or "inflight" of views, "connect", "connection", "message" or '
    '"send" of WebSockets. A rule of tasks is named by @throttled_task, whatever its scopes.'
)
APPLICATION_HINT: Final = "Set ASGI_APPLICATION to the application that is served, such as mysite.asgi.application."
UNKNOWN_ID: Final = "I101"
MIN_SCOPE_SIMILARITY: Final = 0.75  # of 1, from which on a scope is taken for a misspelling


class Site(NamedTuple):
    """The routes of the site, each with its name, view and scope. ``scopes`` include those of sockets.

    ``is_whole`` is False where an instance alone would tell a scope. ``doubt`` says why WebSockets may be in an
    application that was not found.
    """

    views: tuple[tuple[str | None, object, str], ...]
    sockets: frozenset[str]
    scopes: frozenset[str]
    is_whole: bool
    doubt: str
    has_middleware: bool
    asked: Set[str]  # names of rules that code may ask for

    @classmethod
    def read(cls) -> Site:
        """Load the URLconf and the application for WebSockets."""
        of_routes = [(name, view, view_scope(view) or name or route) for name, view, route in routes()]
        scopes = [view_attribute(view, "throttle_scope") for _, view, _ in of_routes]
        views = (*of_routes, (None, None, NO_ROUTE))  # requests without a route have no view
        is_whole = all(scope is None or isinstance(scope, str) for scope in scopes)
        sockets = frozenset(socket_scopes())
        all_scopes = sockets.union(scope for _, _, scope in views)
        has_middleware = place_of(MIDDLEWARE) is not None
        return cls(views, sockets, all_scopes, is_whole, doubt_of_sockets(), has_middleware, _asked_names())

    def fault(self, rule: Rule, entry: str) -> str:
        """Return what is wrong with an entry of the rule's scopes; empty where something has it."""
        is_asked = entry == rule.name and entry in self.asked
        if is_asked or rule.events == TASK_EVENTS or any(matches([entry], scope) for scope in self.scopes):
            return ""
        for scope, consumer in scopes_without_mixin():
            if matches([entry], scope):
                return f"{consumer} has the throttle_scope {scope!r}, which only ThrottledConsumerMixin reads"
        for name, _, scope in self.views:
            if entry == name:
                return f"the route {name!r} has the scope {scope!r}, the throttle_scope of its view, and not its name"
        if "/" in entry and (scope := _scope_at(entry)):
            return f"nothing has the scope {entry!r}; the view at this path has the scope {scope!r}"
        names = entry.split()
        is_list = len(names) > 1 and not self.scopes.isdisjoint(names)
        near = (
            f"; did you mean {', '.join(names)!r}?"
            if is_list
            else did_you_mean(entry, self.scopes, MIN_SCOPE_SIMILARITY)
        )
        if near:
            return f"nothing has the scope {entry!r}{near}"
        is_whole = self.is_whole and (not self.doubt or SOCKET_EVENTS.isdisjoint(rule.events)) and _is_of_places(rule)
        # A rule of WebSockets alone is hardly asked by its name.
        may_be_asked = entry == rule.name and not SOCKET_EVENTS.issuperset(rule.events)
        return f"no route, view or consumer has the scope {entry!r}" if is_whole and not may_be_asked else ""

    def fault_of_events(self, rule: Rule, entry: str) -> str:
        """Return why none of the rule's events happens in the scopes that an entry matches; empty where one does.

        Rules of open sockets alone have a check of their own.
        """
        if rule.events == TASK_EVENTS:
            is_sound = entry in (EVERYWHERE, rule.name) or rule.name in named_by_tasks
            return "" if is_sound else self.fault_of_task(entry)
        if not _is_of_places(rule) or rule.events == ("connection",) or entry == EVERYWHERE:
            return ""
        if entry == rule.name and entry in self.asked:
            return ""
        of_sockets = next((scope for scope in sorted(self.sockets) if matches([entry], scope)), None)
        of_views = next((scope for _, _, scope in self.views if matches([entry], scope)), None)
        if of_views is None and of_sockets is not None and SOCKET_EVENTS.isdisjoint(rule.events):
            return f"{of_sockets!r} is the scope of WebSockets, and the rule counts requests alone"
        if of_sockets is None and of_views is not None and not self.doubt and REQUEST_EVENTS.isdisjoint(rule.events):
            return f"{of_views!r} is the scope of a view, and the rule counts WebSockets alone"
        return ""

    def fault_of_task(self, entry: str) -> str:
        """Return what is wrong with a scope of a rule that counts tasks, and that no task names; empty if unknown."""
        if place := next((scope for scope in sorted(self.scopes) if matches([entry], scope)), None):
            return f"{place!r} is a scope of this site, and the rule counts runs of tasks alone, which name their rule"
        rules = {name: name for name in named_by_tasks}
        for rule, paths in named_by_tasks.items():
            rules |= {name: rule for path in paths for name in (path, path.rpartition(".")[2])}
        near = get_close_matches(entry, rules, n=1, cutoff=MIN_SCOPE_SIMILARITY)
        if not near:
            return ""
        rule, tasks = rules[near[0]], ", ".join(sorted(named_by_tasks[rules[near[0]]]))
        return f"no task names it, and {entry!r} is no scope of a task; did you mean {rule!r}, named by {tasks}?"

    def lacks_sockets(self, rule: Rule) -> bool:
        """Return True for a rule of WebSockets alone, everywhere, on a site that has none."""
        is_of_sockets = SOCKET_EVENTS.issuperset(rule.events) and rule.events != ("connection",)
        return is_of_sockets and not self.doubt and not self.sockets and EVERYWHERE in split_scopes(rule.scopes)[0]

    def unknown(self, rule: Rule, covered: Sequence[str]) -> str:
        """Return what cannot be known of a rule that counts WebSockets, or tasks alone; empty where all is."""
        if rule.events == TASK_EVENTS and rule.name not in named_by_tasks:
            return f"no @throttled_task({rule.name!r}) has been imported, so it is not known if a task names the rule"
        if not self.doubt or SOCKET_EVENTS.isdisjoint(rule.events) or not _is_of_places(rule):
            return ""
        for entry in covered:
            is_asked = entry == rule.name and entry in self.asked
            if not (entry == EVERYWHERE or is_asked or any(matches([entry], scope) for scope in self.scopes)):
                return f"it is not known if a WebSocket has the scope {entry!r}: {self.doubt}"
        if SOCKET_EVENTS.issuperset(rule.events) and not any(covers(rule.scopes, scope) for scope in self.sockets):
            return f"it is not known if the rule limits a WebSocket: {self.doubt}"
        return ""

    def unlimited(self, rule: Rule) -> str | None:
        """Return a scope of the rule whose views no entry point limits; None where one of its places is limited."""
        if any(covers(rule.scopes, scope) for scope in self.sockets) and not SOCKET_EVENTS.isdisjoint(rule.events):
            return None
        views = [(view, scope) for _, view, scope in self.views if covers(rule.scopes, scope)]
        return views[0][1] if views and not any(self.limits(view) for view, _ in views) else None

    def counts_too_late(self, rule: Rule) -> bool:
        """Return True for a rule of answers that REST framework gives before its throttles decide."""
        views = [view for _, view, scope in self.views if view is not None and covers(rule.scopes, scope)]
        is_of_logins = rule.count_on == (401,) and not self.has_middleware
        return is_of_logins and bool(views) and all(map(needs_permission, views))

    def limits(self, view: object) -> bool:
        """Return True if rules may apply to this view by its scope."""
        return self.has_middleware or inherits(throttle_classes(view), RULE_THROTTLE) or chooses_throttles(view)

    def gaps(self, rule: Rule, covered: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield a view that no entry point limits, and its scope, for each scope that the rule names in full."""
        for entry in covered:
            views = ((name or entry, view) for name, view, scope in self.views if scope == entry)
            place = next((place for place, view in views if not self.limits(view)), None)
            if place is not None and not (entry == rule.name and entry in self.asked):
                yield place, entry


@settings_check()
def check_cost_functions(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of functions at ``throttle_cost`` of REST framework views that nothing calls."""
    if not rules_of_settings(_is_of_site) or not getattr(settings, "ROOT_URLCONF", None):
        return
    if place_of(MIDDLEWARE) is None:
        return
    for name, view, route in routes():
        kind, cost = getattr(view, "cls", None), view_attribute(view, "throttle_cost")
        is_function = callable(cost) or isinstance(cost, property)
        if kind is not None and is_function and not inherits(throttle_classes(view), RULE_THROTTLE):
            where = f"{kind.__name__}, at {name or route!r}"
            message = f"{where}, has a function throttle_cost, and nothing calls it: each call counts 1"
            hint = f"Add {RULE_THROTTLE} to its throttle_classes: the middleware knows no request of REST framework."
            yield warning("W044", message, hint)


def fault_of_scope(call: HypotheticalCall, rules: Iterable[Rule]) -> str:
    """Return that nothing has the scope of a call, with the nearest one. Return "" if a place or a rule has it.

    The groups of publications cannot be known.
    """
    patterns = chain.from_iterable(chain((rule.name,), *split_scopes(rule.scopes)) for rule in rules)
    scopes = {*Site.read().scopes, *patterns} - {EVERYWHERE}
    if not call.scope or call.event == "publish" or matches(scopes, call.scope):
        return ""
    near = did_you_mean(call.scope, scopes)
    return translatable("nothing has the scope {scope!r}{near}", scope=call.scope, near=near)


def _import_tasks() -> None:
    """Import the module ``tasks`` of each app, as a worker does. Errors are for the worker to report."""
    for name in {config.name for config in apps.get_app_configs()} - {"django_throttle"}:
        with suppress(Exception):
            import_module(f"{name}.tasks")


def _scope_at(entry: str) -> str:
    """Return the scope of the view at a path, or under a pattern of one, that was written in place of a scope."""
    path = "/" + entry.strip("^$/*.")
    for place in (path, f"{path}/"):
        with suppress(Resolver404):
            return scope_of_match(get_resolver().resolve(place))
    return ""


@settings_check()
def check_scopes(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of rules in settings whose scopes do not exist, or are not limited, or cover too much."""
    yield from _scope_warnings(rules_of_settings(_is_of_site))


@database_check
def check_scope_rows(source: sources.SourceRules) -> Iterator[CheckMessage]:
    """Warn of the same for rules in the database."""
    yield from _scope_warnings(list(filter(_is_of_site, source.rules.values())))
    if source is not sources.NO_RULES:
        yield from _decorator_warnings([*source.rules, *_names_in_settings()])


@settings_check()
def check_decorator_names(raw: RawSettings) -> Iterator[CheckMessage]:
    """Warn of misspelt rule names at decorators and transports, if all rules are in settings."""
    if not value_of(raw, "DATABASE_RULES"):
        yield from _decorator_warnings(_names_in_settings())


def _names_in_settings() -> list[str]:
    return [rule.name for rule in rules_of_settings(lambda rule: True)]


def _decorator_warnings(rule_names: Sequence[str]) -> Iterator[CheckMessage]:
    """Warn of names that are close to a rule's name. A rule of any other name may be added later."""
    _ = list(routes()) if getattr(settings, "ROOT_URLCONF", None) else []  # which imports the views
    transports = dict.fromkeys(named_by_transports, ())
    for form, functions in (
        ("@throttle({!r}) around {}", decorated),
        ("@throttled_task({!r}) around {}", named_by_tasks),
        ("ThrottledTransport({!r})", transports),
    ):
        for name in sorted(functions.keys() - set(rule_names)):
            if near := did_you_mean(name, rule_names):
                place = form.format(name, ", ".join(sorted(functions[name])))
                message = f"{place} limits nothing: there is no rule {name!r}{near}"
                yield warning("W088", message, "Write the name of a rule, or add a rule of this name.")


def _is_of_site(rule: Rule) -> bool:
    return rule.enabled and (rule.events == TASK_EVENTS or not (REQUEST_EVENTS | SOCKET_EVENTS).isdisjoint(rule.events))


def _is_of_places(rule: Rule) -> bool:
    """Return False where a task or a group, which no check can find, may have the scope."""
    return (REQUEST_EVENTS | SOCKET_EVENTS).issuperset(rule.events)


def unknown_scopes(rule: Rule) -> list[str]:
    """Return what checks say of a rule's scopes, and what to do, for whoever edits it."""
    messages = _scope_warnings([rule] if _is_of_site(rule) else [])
    return [f"{message.msg}. {message.hint}" for message in messages if str(message.id)[-4:] in ("W088", UNKNOWN_ID)]


def _scope_warnings(rules: Sequence[Rule]) -> Iterator[CheckMessage]:
    if not rules or not getattr(settings, "ROOT_URLCONF", None):
        return
    site = Site.read()
    if any(rule.events == TASK_EVENTS and rule.name not in named_by_tasks for rule in rules):
        _import_tasks()
    for rule in rules:
        covered, excluded = split_scopes(rule.scopes)
        yield from _lacking_methods(rule)
        yield from _lacking_sockets(rule)
        if rule.name in free_of_charge:
            names = ", ".join(sorted(free_of_charge[rule.name]))
            message = f"rule {rule.name!r} limits nothing where @throttle has the cost 0, around {names}"
            yield warning("W089", message, "Write a cost from 1 on, or a function, or remove the decorator.")
        yield from _idle_plans(rule)
        if rule.name in decorated:
            yield from _beside_decorator(rule, covered)
            continue
        faults = [
            fault for entry in (*covered, *excluded) if entry != EVERYWHERE and (fault := site.fault(rule, entry))
        ]
        for fault in faults:
            yield warning("W088", f"rule {rule.name!r}: {fault}", SCOPE_HINT)
        misplaced = [fault for entry in covered if (fault := site.fault_of_events(rule, entry))]
        for fault in misplaced:
            yield warning("W088", f"rule {rule.name!r}: {fault}", EVENTS_HINT)
        if not (faults or misplaced) and (unknown := site.unknown(rule, covered)):
            hint = EVENTS_HINT if rule.events == TASK_EVENTS else APPLICATION_HINT
            yield Info(f"rule {rule.name!r}: {unknown}", hint=hint, id=f"django_throttle.{UNKNOWN_ID}")
        if not faults and site.lacks_sockets(rule) and rule.name not in site.asked:
            hint = "Limit an application for WebSockets, which is found by ASGI_APPLICATION, or list other events."
            yield warning("W089", f"rule {rule.name!r} limits nothing: no WebSockets were found", hint)
        if faults or misplaced or REQUEST_EVENTS.isdisjoint(rule.events) or not _is_of_places(rule):
            continue
        hint = f"Add {MIDDLEWARE} to MIDDLEWARE, or {RULE_THROTTLE} to the throttle_classes of the view."
        if site.counts_too_late(rule):
            message = f"rule {rule.name!r} limits nothing: REST framework answers 401 before its throttles decide"
            yield warning("W089", message, f"Add {MIDDLEWARE} to MIDDLEWARE, which counts these answers.")
            continue
        if (scope := site.unlimited(rule)) is None:
            for place, scope in site.gaps(rule, covered):
                fault = f"does not limit {place!r} of scope {scope!r}: no entry point applies it there"
                yield warning("W089", f"rule {rule.name!r} {fault}", hint)
            continue
        if EVERYWHERE not in covered:
            message = f"rule {rule.name!r} limits nothing: no entry point applies it to requests of scope {scope!r}"
            yield warning("W089", message, hint)
        elif rule.name not in site.asked:
            yield warning("W089", f"rule {rule.name!r} limits nothing: no entry point applies it to any view", hint)


#: Functions and classes, and their modules, by which code asks for a rule by its name.
NAMED_RULE_FUNCTIONS: Final = {
    "django_throttle.limiter": ("allows", "aallows"),
    "django_throttle.tasks": ("throttled_task",),
    "django_throttle.contrib.httpx": ("ThrottledTransport", "AsyncThrottledTransport"),
}


def _asked_names() -> Set[str]:
    """Return the texts in modules of the site that have imported anything in ``NAMED_RULE_FUNCTIONS``.

    Code asks for no rule whose name is not among them, unless it puts the name together.
    """
    asking: set[int] = set()
    for path, names in NAMED_RULE_FUNCTIONS.items():
        if module := sys.modules.get(path):
            asking |= {id(module), *(id(getattr(module, name, None)) for name in names)}
    asking.discard(id(None))
    texts: set[str] = set()
    for name, module in list(sys.modules.items()):
        values = list(getattr(module, "__dict__", {}).values())
        if name.partition(".")[0] != "django_throttle" and not asking.isdisjoint(map(id, values)):
            texts.update(value for value in values if isinstance(value, str))
            texts.update(_source_texts(name, str(getattr(module, "__file__", ""))))
    return texts


@lru_cache(maxsize=512)
def _source_texts(name: str, path: str) -> frozenset[str]:
    """Return the texts in the source of the module of this name and path, or none if it has no source."""
    try:
        nodes = ast.walk(ast.parse(inspect.getsource(sys.modules[name])))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    return frozenset([node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is str])


def may_be_named(rule: str) -> bool:
    """Return True if code of the site may ask for the rule by its name, and then name who is counted."""
    return rule in decorated or rule in named_by_tasks or rule in named_by_transports or rule in _asked_names()


def _lacking_methods(rule: Rule) -> Iterator[CheckMessage]:
    """Warn of a rule with methods that code names where there is no request."""
    for form, functions in (("@throttle", without_request), ("@throttled_task", named_by_tasks)):
        if rule.methods and rule.name in functions:
            names = ", ".join(sorted(functions[rule.name]))
            message = f"rule {rule.name!r} has methods, and {form} around {names} gets no request: it limits nothing"
            hint = "Remove the methods from the rule. A function under @throttle may take the request as an argument."
            yield warning("W088", message, hint)


def _lacking_sockets(rule: Rule) -> Iterator[CheckMessage]:
    """Warn of a rule that counts by what only a WebSocket has, around views."""
    names = counted_by_key.get(rule.name)
    if names and not {"connection", GROUP}.isdisjoint(key_parts(rule.key)):
        around = ", ".join(sorted(names))
        message = f"rule {rule.name!r} counts by {rule.key}, and @throttle around {around} has none: it limits nothing"
        yield warning("W088", message, "Choose a key that requests have, such as user_or_ip, or write ident=.")


def _idle_plans(rule: Rule) -> Iterator[CheckMessage]:
    """Warn of plans for callers whom the rule does not count."""
    is_of_visitors = rule.audience == ("anonymous",)
    is_counted_by_key = rule.name not in decorated  # ident= of a decorator may name visitors
    is_of_users = (is_counted_by_key and needs_login(rule)) or (
        bool(rule.audience) and all(map(_is_of_users, rule.audience))
    )
    for plan in map(read_plan, rule.plans):
        if _is_of_users(plan.holder) if is_of_visitors else plan.holder == "anonymous" and is_of_users:
            message = f"rule {rule.name!r}: the plan {plan.holder!r} is of callers whom the rule does not count"
            yield warning("W088", message, "Remove the plan, or change the rule's key or audience.")


def _is_of_users(audience: str) -> bool:
    return audience in ("authenticated", "staff") or audience.startswith("group:")


def _beside_decorator(rule: Rule, covered: Sequence[str]) -> Iterator[CheckMessage]:
    """Warn of a rule for a decorator that covers everything, where an entry point sees all requests."""
    sees_all = place_of(MIDDLEWARE) is not None or is_for_all_views(RULE_THROTTLE)
    if EVERYWHERE in covered and sees_all and not REQUEST_EVENTS.isdisjoint(rule.events):
        names = ", ".join(sorted(decorated[rule.name]))
        message = f"rule {rule.name!r} is named by @throttle around {names}, and limits every other request too"
        yield warning("W090", message, f'Give it scopes of its own: "scopes": ["{rule.name}"].')
