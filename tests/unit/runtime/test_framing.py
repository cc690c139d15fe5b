from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.rpc.framing import (
    Frame,
    as_message,
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


def test_padding_is_zero_and_the_length_is_about_right() -> None:
    frame = Frame(b"", [np.ones(1, np.uint8)])
    message = frame.encode()
    assert message[64:] == b"\1" + bytes(63)
    assert frame.nbytes <= len(message) <= frame.nbytes + 3 * 64


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
    frame = Frame(b"head", [np.frombuffer(body, np.uint8)])
    unmarked, marked = frame.encode(), frame.encode(what, number)
    assert frame_mark(unmarked) == (0, 0)
    assert frame_mark(marked) == (what, number)
    assert decode_frame(marked) == decode_frame(unmarked)
    assert marked[:12] + marked[16:] == unmarked[:12] + unmarked[16:]
    other = frame.encode(255, (1 << 24) - 1)
    assert mark_frame(other, what, number) == mark_frame(unmarked, what, number) == marked
    assert as_message(frame, what, number) == marked
    assert as_message(unmarked) is unmarked


@pytest.mark.parametrize("message", [b"", b"EDF1" + bytes(11), b"EDF2" + bytes(60)])
def test_only_frames_are_marked(message: bytes) -> None:
    with pytest.raises(InvalidInputError, match="not a frame"):
        mark_frame(message, 1, 2)
    with pytest.raises(InvalidInputError, match="not a frame"):
        frame_mark(message)
