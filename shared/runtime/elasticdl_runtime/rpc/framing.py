"""Frames: a small protobuf header and raw buffers in one message, without copies on the reading side.

The layout is described in ``ps.proto``.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError

_MAGIC = b"EDF1"
_FIXED = struct.Struct("<4sIII")
_MARK = struct.Struct("<I")
_MARK_AT = 12
_NUMBER_BITS = 24
NUMBERS = 1 << _NUMBER_BITS
"""So many different numbers a frame can be marked with."""
_ALIGN = 64
_MAX_BUFFERS = 1 << 20
_SMALL = 1 << 12
"""Up to here it costs less to copy a buffer twice than to address it."""
_BYTE = np.dtype(np.uint8)
_PADDING = [bytes(-length % _ALIGN) for length in range(_ALIGN)]
"""By the length of what is padded, modulo the alignment."""

# A bytes object of the C API's making may be written to until it is first used; from Python there is no way to make
# one without filling it with zeros or copying it once more, which at 64 MB costs as much as the work itself.
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]
_address = ctypes.pythonapi.PyBytes_AsString
_address.restype = ctypes.c_void_p
_address.argtypes = [ctypes.py_object]
# An array type of ctypes would do as well, but making one for each length costs more than a frame.
_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype = ctypes.py_object
_view.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_WRITABLE = 0x200


class Room(NamedTuple):
    """A buffer of a frame that is filled after the frame was made: an array of this shape and dtype."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def encode_frame(header: bytes, buffers: Sequence[NDArray[Any]] = ()) -> bytes:
    """Packs a header and arrays into one message.

    Args:
        header: an encoded protobuf message.
        buffers: arrays of any numeric dtype and shape; their bytes are copied once.

    Returns:
        The message.
    """
    arrays = [np.ascontiguousarray(array) for array in buffers]
    pieces: list[Any] = [_start(header, [array.nbytes for array in arrays])]
    for array in arrays:
        pieces += (array, _PADDING[array.nbytes % _ALIGN])
    return b"".join(pieces)


def compose_frame(header: bytes, buffers: Sequence[NDArray[Any] | Room]) -> tuple[bytes, list[NDArray[Any]]]:
    """Packs a header, arrays, and room for others into one message.

    Args:
        header: an encoded protobuf message.
        buffers: C-contiguous arrays of any numeric dtype and shape, whose bytes are copied once, and what is to be
            computed where it is sent from.

    Returns:
        The message, and a writable array for each ``Room``. Fill them all before the message is used, and do not use
        them after that: they are valid while the message is alive.
    """
    lengths = [
        math.prod(buffer.shape) * buffer.dtype.itemsize if isinstance(buffer, Room) else buffer.nbytes
        for buffer in buffers
    ]
    start = _start(header, lengths)
    total = len(start) + sum(lengths) + sum(-length % _ALIGN for length in lengths)
    message: bytes = _new_bytes(None, total)
    memory: memoryview = _view(_address(message), total, _WRITABLE)
    pieces: list[Any] = [start]
    places: list[NDArray[Any]] = []
    # Small pieces that lie side by side are joined and written at once.
    written, position = 0, len(start)
    for buffer, length in zip(buffers, lengths, strict=True):
        if length <= _SMALL and not isinstance(buffer, Room):
            pieces.append(buffer)
        else:
            memory[written:position] = b"".join(pieces)
            pieces = []
            written = position + length
            place: NDArray[Any] = np.ndarray(buffer.shape, buffer.dtype, memory, position)
            if isinstance(buffer, Room):
                places.append(place)
            else:
                place[...] = buffer
        padding = _PADDING[length % _ALIGN]
        pieces.append(padding)
        position += length + len(padding)
    memory[written:position] = b"".join(pieces)
    return message, places


def allocate_frame(header: bytes, lengths: Sequence[int]) -> tuple[bytes, list[NDArray[np.uint8]]]:
    """Makes a message whose buffers are still to be filled, so that results are computed where they are sent from.

    Args:
        header: an encoded protobuf message.
        lengths: length of each buffer in bytes.

    Returns:
        The message, and a writable uint8 array over each of its buffers. Fill them all before the message is used,
        and do not use them after that: they are valid while the message is alive.
    """
    return compose_frame(header, [Room((length,), _BYTE) for length in lengths])


def decode_frame(message: bytes) -> tuple[bytes, list[memoryview]]:
    """Takes a message apart.

    Args:
        message: what ``encode_frame`` made.

    Returns:
        The header, and views of the buffers inside ``message``; read them with ``np.frombuffer``.

    Raises:
        InvalidInputError: the message is no frame, or its lengths lie.
    """
    if len(message) < _FIXED.size:
        raise InvalidInputError(f"a frame of {len(message)} bytes is too short", fix="send a frame (see ps.proto)")
    magic, header_length, count, _ = _FIXED.unpack_from(message)
    if magic != _MAGIC or count > _MAX_BUFFERS or _FIXED.size + 8 * count + header_length > len(message):
        raise InvalidInputError("the message is not a frame", fix="send a frame (see ps.proto)")
    lengths = struct.unpack_from(f"<{count}Q", message, _FIXED.size)
    head = _FIXED.size + 8 * count + header_length
    view = memoryview(message)
    buffers = []
    position = head + -head % _ALIGN
    for length in lengths:
        buffers.append(view[position : position + length])
        position += length + -length % _ALIGN
    if position != len(message):
        raise InvalidInputError(
            f"a frame of {len(message)} bytes claims buffers of {sum(lengths)} bytes",
            fix="send a frame (see ps.proto)",
        )
    return message[head - header_length : head], buffers


def mark_frame(message: bytes, what: int, number: int) -> None:
    """Writes into the one field of a frame that is free, in place: a copy of all of it would cost too much.

    Args:
        message: what one of the functions above made, and what nobody else uses at the time.
        what: 8 bits.
        number: 24 bits.

    Raises:
        InvalidInputError: the message is no frame.
    """
    frame_mark(message)
    _MARK.pack_into(_view(_address(message), _FIXED.size, _WRITABLE), _MARK_AT, what << _NUMBER_BITS | number)


def frame_mark(message: bytes) -> tuple[int, int]:
    """What ``mark_frame`` wrote into a frame; zeros if nobody did.

    Raises:
        InvalidInputError: the message is no frame.
    """
    if len(message) < _FIXED.size or not message.startswith(_MAGIC):
        raise InvalidInputError("the message is not a frame", fix="send a frame (see ps.proto)")
    mark: int = _MARK.unpack_from(message, _MARK_AT)[0]
    return mark >> _NUMBER_BITS, mark & NUMBERS - 1


def _start(header: bytes, lengths: Sequence[int]) -> bytes:
    """What is before the first buffer, padded."""
    count = len(lengths)
    fixed = struct.pack(f"<4sIII{count}Q", _MAGIC, len(header), count, 0, *lengths)
    return b"".join((fixed, header, _PADDING[(len(fixed) + len(header)) % _ALIGN]))
