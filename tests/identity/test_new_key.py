"""A key that is added to the table of kinds is there wherever keys are, without another line."""

from typing import Any

import pytest
from django.test import RequestFactory

from django_throttle.admin.rules import key_choices
from django_throttle.core import Override, Rule
from django_throttle.core.descriptions import describe
from django_throttle.core.headers import may_see
from django_throttle.core.key import KEY_KINDS, KeyKind
from django_throttle.core.overrides import subject_kinds
from django_throttle.exceptions import InvalidRule
from django_throttle.identity import RequestCaller
from django_throttle.identity.caller import IdentCaller
from django_throttle.rulebook.sources import check_allowed


def organisation(caller: Any) -> str | None:
    name = caller.header("organisation")
    return f"organisation:{name}" if name else None


ORGANISATION = KeyKind(
    name="organisation",
    label="Organisation",
    words="each organisation",
    find=organisation,
    override="Organisation",
    rank=5,
    in_headers="always",
    is_audience=True,
)
ACME = RequestCaller(RequestFactory().get("/", headers={"organisation": "acme"}))
NONE = RequestCaller(RequestFactory().get("/"))


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KEY_KINDS, "organisation", ORGANISATION)


def test_callers_rules_descriptions_the_admin_and_overrides_have_it() -> None:
    assert (ACME.ident("organisation"), NONE.ident("organisation")) == ("organisation:acme", None)
    assert NONE.ident("ip+organisation") is None and ACME.is_("organisation:acme")
    assert not ACME.is_("organisation:other") and not NONE.is_("organisation:")
    named = IdentCaller("organisation:acme")
    assert [key for key in KEY_KINDS if named.ident(key) == named.name] == ["organisation"]
    for key, words in (("organisation", "each organisation: 5"), ("ip+organisation", "each combination of address")):
        rule = Rule("api", "5/min", key=key)
        assert check_allowed(rule) is rule and describe(rule).startswith(words)
        with pytest.raises(InvalidRule, match="did you mean 'organisation'"):
            Rule("api", "5/min", key=key.replace("organisation", "organization"))
    assert ("organisation", "Organisation") in key_choices()
    assert may_see((), lambda: False, "organisation:acme")
    assert subject_kinds()[-3:] == ("tenant", "organisation", "group")
    assert Override(subject="organisation:acme", effect="block").kind == "organisation"
