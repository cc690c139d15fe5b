"""Tokens and scopes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.access import NAMESPACE_PATTERN, USER_PATTERN, TokenScope, is_mistyped, make_token

pytestmark = pytest.mark.unit


def test_a_token_is_random_and_known_when_seen() -> None:
    made = {make_token() for _ in range(100)}
    assert len(made) == 100
    for token in made:
        assert re.fullmatch(r"edl_[0-9A-Za-z]{38}", token)
        assert not is_mistyped(token)


@given(st.integers(0, 41), st.sampled_from("0aZ_ é\ud800"))
def test_one_wrong_character_is_noticed(place: int, character: str) -> None:
    token = make_token()
    wrong = token[:place] + character + token[place + 1 :]
    assert is_mistyped(wrong) == (wrong != token and wrong.startswith("edl_"))


@given(st.integers(4, 41))
def test_a_token_that_was_cut_off_is_noticed(length: int) -> None:
    assert is_mistyped(make_token()[:length])
    assert is_mistyped(make_token() + "x")


def test_the_wider_scope_includes_the_narrower() -> None:
    read, submit, admin = TokenScope
    included = {one: [other for other in TokenScope if one.includes(other)] for one in TokenScope}
    assert included == {read: [read], submit: [read, submit], admin: [read, submit, admin]}


@pytest.mark.parametrize("name", ["a", "team-a", "0", "a" * 40])
def test_names_of_namespaces(name: str) -> None:
    assert re.fullmatch(NAMESPACE_PATTERN, name)


@pytest.mark.parametrize("name", ["", "A", "-a", "a-", "a b", "a/b", "a" * 41, "é"])
def test_no_names_of_namespaces(name: str) -> None:
    assert not re.fullmatch(NAMESPACE_PATTERN, name)


def test_names_of_users() -> None:
    assert all(re.fullmatch(USER_PATTERN, name) for name in ("ada", "ada@example.org", "CI.bot+1", "a"))
    assert not any(re.fullmatch(USER_PATTERN, name) for name in ("", "@", "a b", "a\n", "a\x1b[0m", "a" * 121))
