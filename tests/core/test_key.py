"""Two distinct (rule, ident) pairs never share a store key, and nothing of an ident is readable in one."""

import string
from typing import Any

import pytest
from hypothesis import given

from django_throttle.core import Rule
from django_throttle.core.key import MAX_IDENT_LENGTH, check_ident, ident_hash, key_root, secret_bytes
from django_throttle.exceptions import InvalidIdent
from tests.strategies import IDENTS, NAMES

SECRET = secret_bytes("secret")


def key_of(name: str, ident: str) -> str:
    return key_root("dt", ident, SECRET) + Rule(name, "5/min").id


@given(NAMES, IDENTS, NAMES, IDENTS)
def test_distinct_pairs_have_distinct_keys(name: str, ident: str, other_name: str, other_ident: str) -> None:
    assert (key_of(name, ident) == key_of(other_name, other_ident)) == ((name, ident) == (other_name, other_ident))


@given(IDENTS)
def test_a_key_is_short_plain_and_tells_nothing(ident: str) -> None:
    key = key_of("rule", ident)
    prefix, tag, rule = key.split(":")
    assert (prefix, tag[0], tag[-1], len(tag), len(rule)) == ("dt", "{", "}", 24, 8)
    assert set(tag[1:-1] + rule) <= set(string.ascii_letters + string.digits + "-_=")
    assert len(ident) < 3 or ident not in tag


@pytest.mark.row("A19")
def test_idents_with_a_tag_of_their_own_do_not_gather_in_one_slot() -> None:
    tags = {ident_hash(f"{{x}}{number}", SECRET) for number in range(1000)}
    assert len(tags) == 1000


def test_the_secret_keys_the_hash() -> None:
    tags = {ident_hash("user:1", secret_bytes(secret)) for secret in ("", "a", "b", "a" * 200, "\ud800")}
    assert len(tags) == 5
    assert ident_hash("user:1", SECRET) == "XdSj31c2aGiDofKmwp5fZw", (
        "as every process of a site computes it, old or new"
    )


@pytest.mark.parametrize("ident", ["", "a" * (MAX_IDENT_LENGTH + 1), None, 42, b"user:1", ["user:1"], True])
def test_an_ident_is_text_of_bounded_length(ident: Any) -> None:
    with pytest.raises(InvalidIdent) as caught:
        check_ident(ident)
    assert len(str(caught.value)) < 100 and "aaa" not in str(caught.value)
