"""Tokens of pages: they say where to go on, for this list only, and cannot be made up."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_api.web.paging import PageTokens
from elasticdl_core.errors import InvalidInputError

pytestmark = pytest.mark.unit
TOKENS = PageTokens("a secret of the cluster")


@given(st.lists(st.text() | st.integers() | st.none(), max_size=3), st.dictionaries(st.text(), st.text(), max_size=2))
def test_a_token_says_what_was_put_into_it(place: list[object], filters: dict[str, str]) -> None:
    token = TOKENS.make("jobs", filters, place)
    assert TOKENS.read(token, "jobs", filters) == place
    assert PageTokens("a secret of the cluster").read(token, "jobs", filters) == place


@pytest.mark.parametrize("listed", ["jobs", "decisions"])
@pytest.mark.parametrize("filters", [{"name": "a"}, {"name": "b"}, {}])
def test_a_token_is_of_one_list_with_its_filters(listed: str, filters: dict[str, str]) -> None:
    token = TOKENS.make("jobs", {"name": "a"}, [7])
    if (listed, filters) == ("jobs", {"name": "a"}):
        assert TOKENS.read(token, listed, filters) == [7]
        return
    with pytest.raises(InvalidInputError, match="page_token"):
        TOKENS.read(token, listed, filters)


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_what_is_made_up_is_refused(token: str) -> None:
    with pytest.raises(InvalidInputError):
        TOKENS.read(token, "jobs", {})


def test_a_token_of_another_cluster_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        TOKENS.read(PageTokens("another secret").make("jobs", {}, ["9999-12-31T23:59:59Z", "x"]), "jobs", {})


@given(st.sets(st.integers(0, 1000)), st.integers(1, 7))
def test_pages_together_are_the_list(numbers: set[int], limit: int) -> None:
    rows = sorted(numbers)
    seen: list[int] = []
    token: str | None = None
    pages = max(1, -(-len(rows) // limit))
    for number in range(1, pages + 1):
        page, token = TOKENS.cut("rows", rows, lambda row: row, limit, token)
        assert len(page) <= limit
        assert (token is None) is (number == pages), "the last page says so, also a full one"
        seen += page
    assert seen == rows
