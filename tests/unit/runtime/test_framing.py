from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.rpc.framing import (
    Room,
    allocate_frame,
    compose_frame,
    decode_frame,
    encode_frame,
    frame_mark,
    mark_frame,
)

pytestmark = pytest.mark.unit


@given(header=st.binary(max_size=200), bodies=st.lists(st.binary(max_size=300), max_size=6))
def test_what_is_encoded_is_decoded(header: bytes, bodies: list[bytes]) -> None:
    frame = encode_frame(header, [np.frombuffer(body, np.uint8) for body in bodies])
    found, buffers = decode_frame(frame)
    assert found == header
    assert [bytes(buffer) for buffer in buffers] == bodies
    assert type(frame) is bytes
    assert len(frame) % 64 == 0


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint16", "float64"])
def test_arrays_of_any_kind_come_back_aligned_and_equal(dtype: str) -> None:
    array = np.arange(30).astype(dtype).reshape(5, 6)
    _, (first, second, third) = decode_frame(encode_frame(b"h", [array, array[::2].T, np.zeros((0, 3), dtype)]))
    np.testing.assert_array_equal(np.frombuffer(first, dtype).reshape(5, 6), array)
    np.testing.assert_array_equal(np.frombuffer(second, dtype).reshape(6, 3), array[::2].T)
    assert len(third) == 0
    assert np.frombuffer(first, dtype).flags.aligned


def test_results_are_computed_in_the_message() -> None:
    frame, (first, second) = allocate_frame(b"head", [12, 5])
    first.view(np.float32)[:] = [1, 2, 3]
    second[:] = 7
    header, buffers = decode_frame(frame)
    assert header == b"head"
    assert np.frombuffer(buffers[0], np.float32).tolist() == [1, 2, 3]
    assert bytes(buffers[1]) == b"\7" * 5


@given(
    header=st.binary(max_size=200),
    sizes=st.lists(st.tuples(st.sampled_from([0, 1, 7, 64, 1000, 1024, 1025, 3000]), st.booleans()), max_size=8),
)
def test_what_is_there_and_what_is_computed_later_make_the_same_message(
    header: bytes, sizes: list[tuple[int, bool]]
) -> None:
    arrays = [np.arange(size, dtype=np.float32) + number for number, (size, _) in enumerate(sizes)]
    later = [array for array, (_, room) in zip(arrays, sizes, strict=True) if room]
    buffers = [
        Room(array.shape, array.dtype) if room else array for array, (_, room) in zip(arrays, sizes, strict=True)
    ]
    frame, places = compose_frame(header, buffers)
    for place, array in zip(places, later, strict=True):
        place[...] = array
    assert frame == encode_frame(header, arrays)


def test_padding_holds_no_old_memory() -> None:
    for _ in range(20):
        junk = [bytes([255]) * 200 for _ in range(50)]
        del junk
        frame, (place,) = allocate_frame(b"", [1])
        place[:] = 1
        assert frame[64:] == b"\1" + bytes(63)


def lie(**changes: Any) -> bytes:
    frame = bytearray(encode_frame(b"head", [np.zeros(4, np.float32)]))
    values = {"magic": b"EDF1", "header": 4, "count": 1, "length": 16} | changes
    struct.pack_into("<4sII", frame, 0, values["magic"], values["header"], values["count"])
    struct.pack_into("<Q", frame, 16, values["length"])
    return bytes(frame)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"EDF1",
        bytes(64),
        lie(magic=b"EDF2"),
        lie(header=2**32 - 1),
        lie(count=2**32 - 1),
        lie(count=1 << 19),
        lie(count=0),
        lie(length=2**64 - 1),
        lie(length=1000),
        lie()[:-1],
        lie() + b"x",
    ],
)
def test_frames_that_lie_are_refused(frame: bytes) -> None:
    with pytest.raises(InvalidInputError):
        decode_frame(frame)


@given(st.binary(max_size=200))
def test_noise_never_crashes(noise: bytes) -> None:
    try:
        decode_frame(noise)
    except InvalidInputError:
        pass


@given(what=st.integers(0, 255), number=st.integers(0, (1 << 24) - 1), body=st.binary(max_size=100))
def test_a_mark_changes_nothing_else_of_a_frame(what: int, number: int, body: bytes) -> None:
    buffers = [np.frombuffer(body, np.uint8)]
    frame, untouched = encode_frame(b"head", buffers), encode_frame(b"head", buffers)
    assert frame_mark(frame) == (0, 0)
    for mark in ((255, (1 << 24) - 1), (what, number)):
        mark_frame(frame, *mark)
        assert frame_mark(frame) == mark
        assert decode_frame(frame) == decode_frame(untouched)
    assert frame[:12] + frame[16:] == untouched[:12] + untouched[16:]


@pytest.mark.parametrize("message", [b"", b"EDF1" + bytes(11), b"EDF2" + bytes(60)])
def test_only_frames_are_marked(message: bytes) -> None:
    before = bytes(bytearray(message))
    with pytest.raises(InvalidInputError, match="not a frame"):
        mark_frame(message, 1, 2)
    with pytest.raises(InvalidInputError, match="not a frame"):
        frame_mark(message)
    assert message == before
