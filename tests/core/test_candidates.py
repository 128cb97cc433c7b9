"""The share of idents for which a candidate holds: it grows without leaving anybody out, and is near what is asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from django_throttle.core.key import secret_bytes
from django_throttle.core.overrides import is_in_share

SECRET = secret_bytes("secret")
SHARES = st.floats(0, 1)


@given(st.text(min_size=1, max_size=40), SHARES, SHARES)
def test_who_is_in_a_share_is_in_every_larger_one(ident: str, one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert is_in_share(ident, small, SECRET) <= is_in_share(ident, large, SECRET)
    assert is_in_share(ident, 1.0, SECRET) and not is_in_share(ident, 0.0, SECRET)


@given(st.integers(0, 10**9), st.sampled_from([0.01, 0.1, 0.25, 0.5, 0.9]))
def test_a_share_has_about_as_many_idents_as_it_says(first: int, share: float) -> None:
    count = sum(is_in_share(f"user:{first + number}", share, SECRET) for number in range(2000))
    assert abs(count - 2000 * share) < 6 * (2000 * share * (1 - share)) ** 0.5 + 2
