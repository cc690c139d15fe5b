"""Text and names that can be sent and stored."""

from __future__ import annotations

import json
import os

import pytest

from elasticdl_core.json_numbers import to_json
from elasticdl_core.path_policy import path_text
from elasticdl_core.well_formed import as_name, is_name, well_formed

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (os.fsdecode(b"d\xff\xfe.csv"), "d\\xff\\xfe.csv"),
        ("half \ud83d", "half \\ud83d"),
        ("nul \0", "nul \\x00"),
        ("ä 中 😀 \n", "ä 中 😀 \n"),
        ("plain", "plain"),
    ],
)
def test_what_cannot_be_sent_is_escaped(text: str, escaped: str) -> None:
    assert well_formed(text) == escaped
    assert well_formed(text).encode().decode() == escaped
    told = to_json({text: [text, {"deep": (text, 1.5)}], "n": 1})
    assert json.loads(json.dumps(told)) == {escaped: [escaped, {"deep": [escaped, 1.5]}], "n": 1}


def test_names_of_files_that_cannot_be_listed_are_escaped_as_urls_have_them() -> None:
    assert [is_name(name) for name in ("ä b.txt", "a\nb", os.fsdecode(b"\xff"))] == [True, False, False]
    assert [as_name(name) for name in ("ä b.txt", "a\nb", os.fsdecode(b"m\xff"))] == ["ä b.txt", "a%0Ab", "m%FF"]


def test_file_urls_name_paths_as_pathlib_writes_them() -> None:
    assert path_text("file:///a/d%C3%A4%20ta") == "/a/dä ta"
    assert path_text("file:///a/%FF") == os.fsdecode(b"/a/\xff")
    assert path_text("/a/100%25.csv") == "/a/100%25.csv"
    assert path_text("s3://b/a%20b") == "s3://b/a%20b"
