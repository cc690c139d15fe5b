from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data.errors import ReaderParamsError
from elasticdl.data.params import parse_reader_params

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("", {}),
        (" ; ", {}),
        ('sep=";";with_header=true;columns=["a","b"]', {"sep": ";", "with_header": True, "columns": ["a", "b"]}),
        ("columns=['a', 'b;c'] ; on_corrupt = skip;", {"columns": ["a", "b;c"], "on_corrupt": "skip"}),
        ("with_header=True;n=3;x=1.5;none=None", {"with_header": True, "n": 3, "x": 1.5, "none": None}),
        ("table=a'b;rest=x=y", {"table": "a'b", "rest": "x=y"}),
        ('path="a\\";b"', {"path": 'a";b'}),
        ('map={"a;b": [1, 2]}', {"map": {"a;b": [1, 2]}}),
        ("encoding=utf-8", {"encoding": "utf-8"}),
        ("empty=", {"empty": ""}),
    ],
)
def test_text_is_parsed(text: str, params: dict[str, Any]) -> None:
    assert parse_reader_params(text) == params


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
        st.one_of(st.booleans(), st.integers(), st.text(), st.lists(st.text()), st.none()),
        max_size=4,
    )
)
def test_json_values_come_back_as_they_were(params: dict[str, Any]) -> None:
    assert parse_reader_params("; ".join(f"{key}={json.dumps(value)}" for key, value in params.items())) == params


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("header", "'header' is not key=value"),
        ("a=1;a=2", "a is given twice"),
        ('a=["x', "\" is missing in 'a="),
        ("a=[1, 2", "] is missing"),
        ("a=[x y]", "the value of a is not valid JSON"),
        ("a=[__import__('os').getcwd()]", "the value of a is not valid JSON"),
        ("=3", "'=3' is not key=value"),
    ],
)
def test_broken_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ReaderParamsError) as caught:
        parse_reader_params(text)
    assert message in caught.value.message
    assert caught.value.fix
