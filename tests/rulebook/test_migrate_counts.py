"""What was already used still counts over an edit: nobody is refreshed by it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_throttle.core import Rule
from django_throttle.core.commands import Charge, Decide
from django_throttle.core.edits import COUNTS_ON, STARTS_AFRESH, counts_in_words, takeovers
from django_throttle.exceptions import Cause, StoreError
from django_throttle.limiter import Limiter
from django_throttle.rulebook import migrate_counts
from django_throttle.stores import MemoryStore, RedisStore
from tests.clock import FrozenClock
from tests.rulebook.test_rule_edits import Process, environment, start

__all__ = ["environment", "start"]  # fixtures
IDENT = "user:1"


def rule(rate: str, algorithm: str = "fixed_window", **options: Any) -> Rule:
    return Rule("api", rate, key="user", algorithm=algorithm, **options)


def ring(*rules: Rule) -> list[tuple[Rule, Rule]]:
    """Each rule to the next, and back; of one window and algorithm is one count, which no edit moves."""
    return [(old, new) for old, new in zip(rules, (*rules[1:], rules[0]), strict=True) if old.id != new.id]


RING = [
    *ring(
        *(rule("10/min"), rule("4/10s"), rule("30/h"), rule("10/min", "sliding_window")),
        *(rule("6/30s", "sliding_window", resolution=3), rule("6/30s", "sliding_window", strict=True)),
        *(rule("8/min", "sliding_log"), rule("12/day", timezone="UTC")),
    ),
    *ring(
        *(rule("10/min", "gcra"), rule("2/min", "gcra", burst=10), rule("30/min", "token_bucket", burst=5)),
        *(rule("6/30s", "leaky_bucket"), rule("7/min", "token_bucket", refill="interval")),
    ),
]


@pytest.fixture(autouse=True)
def no_edits(monkeypatch: pytest.MonkeyPatch, clock: FrozenClock) -> Iterator[None]:
    monkeypatch.setattr(migrate_counts, "monotonic", clock)
    migrate_counts.forget()
    yield
    migrate_counts.forget()


def edit(old: Rule, new: Rule) -> None:
    migrate_counts.note({old.name: old}.get, [new])


def spend(store: Any, under: Rule, tries: int = 100, ident: str = IDENT) -> int:
    one = Limiter([under], store)
    return sum(one.acquire(ident).allowed for _ in range(tries))


def begin(old: Rule, new: Rule) -> None:
    migrate_counts.forget()
    migrate_counts.recall([(0.0, old, new)])


@pytest.mark.parametrize("edited", [edit, begin], ids=["a process that goes on", "a process that begins"])
@pytest.mark.parametrize(("old", "new"), RING)
def test_who_has_used_all_is_not_refreshed(each_store: Any, edited: Any, old: Rule, new: Rule) -> None:
    used = spend(each_store, old)
    edited(old, new)
    assert spend(each_store, new) == max(0, new.params.limit - used)
    few = spend(each_store, old, 2, ident="user:2")
    edited(old, new)
    assert spend(each_store, new, 1, ident="user:2") == 1
    begin(old, new)
    left = Limiter([new], each_store).peek("user:2", cost=0).remaining
    assert left is not None and left >= new.params.limit - few - 1, "another process counts it no second time"
    assert spend(each_store, new, ident="user:3") == new.params.limit


def test_who_has_not_called_since_an_earlier_edit_is_not_refreshed_either(each_store: Any, clock: FrozenClock) -> None:
    first, second, third = rule("10/min"), rule("8/min", "sliding_log"), rule("12/day", timezone="UTC")
    assert spend(each_store, first, 7) == 7
    edit(first, second)
    edit(second, third)
    assert spend(each_store, third) == 12 - 7
    edit(third, first)
    assert spend(each_store, first) == 0, "which has seven of its own, and counts the others"
    clock.tick(60)
    assert spend(each_store, first) == 10


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        *((rule("10/min"), new, COUNTS_ON) for new in (rule("20/min"), rule("10/h"), rule("10/min", "sliding_log"))),
        (rule("10/min", "gcra"), rule("10/h", "token_bucket"), COUNTS_ON),
        *((rule("10/min"), new, "") for new in (rule("10/min"), rule("10/min", scopes=("other",)))),
        *((rule("10/min"), new, STARTS_AFRESH) for new in (rule("10/min", "gcra"), rule("10/min", unit="bytes"))),
        (rule("10/min"), Rule("api", "10/min", key="ip", algorithm="fixed_window"), STARTS_AFRESH),
        (rule("10/min", "leaky_bucket"), rule("10/h", "leaky_bucket", action="delay"), STARTS_AFRESH),
    ],
)
def test_the_form_says_what_becomes_of_what_was_used(old: Rule, new: Rule, said: str) -> None:
    assert counts_in_words(old, new) == said
    assert bool(takeovers(old, new)) <= (said == COUNTS_ON)


@pytest.mark.parametrize("prepaid", [False, True])
def test_what_a_process_buys_ahead_is_no_more(redis_url: str, clock: FrozenClock, prepaid: bool) -> None:
    store = RedisStore(redis_url, clock=clock, deadline=5.0)
    old, new = rule("10/min"), rule("12/h", prepaid=prepaid)
    assert spend(store, old) == 10
    edit(old, new)
    passed = [Limiter([new], store).acquire(IDENT).allowed for _ in range(9)]
    assert sum(passed) == 2


def test_a_store_that_fails_meanwhile_decides_by_the_policy(clock: FrozenClock) -> None:
    class Failing(MemoryStore):
        def execute(self, command: Any) -> Any:
            if isinstance(command, Decide):
                raise StoreError(Cause.UNAVAILABLE, "away")
            return super().execute(command)

    old, new = rule("10/min"), rule("12/h", on_store_failure="allow")
    edit(old, new)
    decision = Limiter([new], Failing(clock)).acquire(IDENT)
    assert decision.allowed
    assert decision.degraded
    assert migrate_counts.pending_migrations([Charge(new, IDENT, 1)])


# Says, for each line that it is given, how many of three calls pass.
CALLING = """
import sys, time, django
django.setup()
from django_throttle import limiter
from django_throttle.identity.call import Call
from django_throttle.models import ThrottleRule
from tests.callers import KeyedCaller
for line in sys.stdin:
    name, value = line.split()
    if name == "rate":
        ThrottleRule.objects.update_or_create(name="api", defaults={"rate": value, "key": "user"})
        print("saved", flush=True)
        continue
    call = Call("page", ("request",), KeyedCaller(user=value))
    print(sum(limiter.decide(call).allowed for _ in range(3)), flush=True)
"""


@pytest.mark.parametrize("is_deployment", [False, True], ids=["a row", "settings"])
def test_a_process_that_starts_after_the_edit_knows_the_former_rule(
    start: Callable[..., Process], is_deployment: bool
) -> None:
    def asked(process: Process, line: str) -> str:
        process.say(line)
        return process.hear()

    def passed(rate: str, ident: str) -> str:
        own = {"DJANGO_SETTINGS_MODULE": "tests.editing", "RULES": json.dumps({"api": {"rate": rate, "key": "user"}})}
        if not is_deployment:
            assert asked(editor, f"rate {rate}") == "saved"
        return asked(start(CALLING, **(own if is_deployment else {}), DEADLINE="5"), f"calls {ident}")

    editor = start(CALLING)
    assert [passed("3/h", "user:1"), passed("3/d", "user:1"), passed("3/d", "user:2")] == ["3", "0", "3"]
