"""Bytes of any kind, as bodies and as bundles: taken as what they are, or refused in one way."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticdl_api.web.json_bodies import JsonBounds, check_shape, parse_json
from elasticdl_api.web.problems import MalformedError
from elasticdl_core.errors import InvalidInputError, SpecError
from elasticdl_core.job import JobSpec
from elasticdl_runtime.bundles import examine_bundle, unpack_bundle
from tests.fakes import bad_inputs

pytestmark = pytest.mark.unit
NUMBERS = [200, pytest.param(50_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
_PIECES = st.sampled_from(
    [b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"1", b"1e999", b"-", b"null", b'"name"', b"\\u0000"]
)
_JSON_LIKE = st.lists(_PIECES | st.binary(max_size=4), max_size=60).map(b"".join)
BOUNDS = JsonBounds(depth=5, values=20)


def _each(strategy: st.SearchStrategy[bytes], number: int, check: Callable[[bytes], None]) -> None:
    checks = list(HealthCheck)

    @settings(max_examples=number, deadline=None, derandomize=True, database=None, suppress_health_check=checks)
    @given(strategy)
    def run(data: bytes) -> None:
        bad_inputs.count("readers of bodies and bundles")
        check(data)

    run()


@pytest.mark.parametrize("number", NUMBERS)
def test_bytes_as_a_body(number: int) -> None:
    def check(data: bytes) -> None:
        try:
            check_shape(data, BOUNDS)
            value = parse_json(data)
        except MalformedError:
            return
        assert json.loads(data) == value
        if isinstance(value, dict):
            with pytest.raises(SpecError):
                JobSpec.from_mapping(value)

    _each(_JSON_LIKE, number, check)


@pytest.mark.parametrize("number", NUMBERS)
def test_what_is_too_deep_is_found_whatever_is_around_it(number: int) -> None:
    """Every text that the parser takes is as deep as the look at its bytes says."""

    def depth(value: object) -> int:
        if isinstance(value, dict):
            return 1 + max(map(depth, value.values()), default=0)
        return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0

    values = st.recursive(
        st.text(max_size=8) | st.integers() | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=12,
    )

    def check(data: bytes) -> None:
        bounds = JsonBounds(depth=3, values=10_000)
        if depth(json.loads(data)) <= 3:
            check_shape(data, bounds)
        else:
            with pytest.raises(MalformedError, match="3 levels"):
                check_shape(data, bounds)

    _each(values.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")), number, check)


@pytest.mark.parametrize("number", NUMBERS)
def test_bytes_as_a_bundle(tmp_path: Path, number: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.py", b"x = 1\n" * 20)
        archive.writestr("sub/data.txt", b"abc")
    sound = buffer.getvalue()
    changes = st.lists(st.tuples(st.integers(0, len(sound) - 1), st.integers(0, 255)), max_size=4)

    def changed(made: list[tuple[int, int]]) -> bytes:
        data = bytearray(sound)
        for place, value in made:
            data[place] = value
        return bytes(data)

    runs = iter(range(10**9))

    def check(data: bytes) -> None:
        folder = tmp_path / str(next(runs))
        folder.mkdir()
        (folder / "b.zip").write_bytes(data)
        try:
            examine_bundle(folder / "b.zip")
        except InvalidInputError:
            with pytest.raises(InvalidInputError):
                unpack_bundle(folder / "b.zip", folder / "code")
            assert [one.name for one in folder.iterdir()] == ["b.zip"]
        else:
            unpack_bundle(folder / "b.zip", folder / "code")
            assert {one.name for one in folder.iterdir()} <= {"b.zip", "code"}

    _each(changes.map(changed) | st.binary(max_size=200), number, check)
