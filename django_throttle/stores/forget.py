"""Budgets given back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django_throttle.core.command import Charge, Forget
from django_throttle.stores.errands import Errand
from django_throttle.stores.link import Call
from django_throttle.stores.scripts import script

if TYPE_CHECKING:
    from django_throttle.stores.redis import RedisStore


class ForgetErrand(Errand):
    """Rates become full again."""

    __slots__ = ("local",)

    def __init__(self, store: RedisStore, command: Forget) -> None:
        super().__init__(store)
        self.local = [charge for charge in command.charges if charge.rule.is_local]
        damped = [charge for charge in self.local if charge.rule.is_damper]
        exact = [charge for charge in command.charges if not (charge.rule.is_damper or charge.rule.is_concurrency)]
        self.calls += [Call(script("forget"), keys, ()) for keys in self._keys(exact)]
        now = store.now_arg()
        self.calls += [Call(script("undamp"), keys, (now,), derives=True) for keys in self._keys(damped)]

    def read(self, replies: Sequence[Any]) -> int:
        if self.store.denials is not None:
            self.store.denials.clear()  # what was refused while this travelled
        for charge in self.local:
            self.store.meters.forget(charge.rule.id, charge.ident)
        return sum(map(int, replies))

    def _keys(self, charges: Sequence[Charge]) -> list[list[str]]:
        places = self.store.by_slot(charges) if charges else []
        return [[self.store.key(charges[at].rule.id, charges[at].ident) for at in part] for part in places]
