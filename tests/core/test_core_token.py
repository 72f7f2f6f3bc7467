"""A token is a secret and a public part; only the public part is ever shown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.token import compose, is_ours, owner_of

quick = settings(deadline=None, database=None, max_examples=200)
owners = st.lists(st.integers(0, 0x10FFFF).map(chr) | st.sampled_from("~:-. ab"), max_size=40).map("".join)
secrets = st.text("0123456789abcdef", min_size=32, max_size=32)
SECRET = "0123456789abcdef" * 2


@quick
@given(secrets, owners)
def test_the_owner_comes_back_and_the_secret_does_not(secret: str, owner: str) -> None:
    token = compose(secret, owner)
    assert is_ours(token)
    assert owner_of(token) == owner
    assert token.startswith(secret), "the store holds both"


@quick
@given(secrets, secrets, st.text("abc:~", max_size=8))
def test_different_secrets_make_different_tokens(one: str, two: str, owner: str) -> None:
    assert (compose(one, owner) == compose(two, owner)) == (one == two)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "~",
        "lock",
        SECRET,  # redis-py's Lock writes a uuid1().hex: a secret with nothing behind it
        SECRET[:-1] + "~host:1",
        SECRET + "0~host:1",
        SECRET.upper() + "~host:1",
        SECRET[:-1] + "g~host:1",
        SECRET[:-1] + "٣~host:1",  # a digit, but not one of ours
        " " + SECRET + "~host:1",
        SECRET + ":host~1",
        "c7bfd3bd-5d5c-4c6e-9c2d-7a4a4d9d4b51",
        "ё" * 40,
    ],
)
def test_a_foreign_value_is_not_ours_and_shows_nothing(value: str) -> None:
    assert not is_ours(value)
    assert owner_of(value) == ""


@quick
@given(owners | secrets | st.builds(str.__add__, secrets, owners))
def test_any_value_can_be_looked_at_and_only_ours_shows_anything(value: str) -> None:
    assert owner_of(value) == (value[33:] if is_ours(value) else "")


def test_an_owner_may_hold_the_separator() -> None:
    assert owner_of(compose(SECRET, "web~7:42")) == "web~7:42"
    assert owner_of(compose(SECRET, "")) == ""
