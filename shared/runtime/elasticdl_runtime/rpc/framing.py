"""Frames: a small protobuf header and raw buffers in one message, without copies on the reading side.

The layout is described in ``ps.proto``.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError

_MAGIC = b"EDF1"
_FIXED = struct.Struct("<4sIII")
_ALIGN = 64
_MAX_BUFFERS = 1 << 20

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


def encode_frame(header: bytes, buffers: Sequence[NDArray[Any]] = ()) -> bytes:
    """Packs a header and arrays into one message.

    Args:
        header: an encoded protobuf message.
        buffers: C-contiguous arrays of any dtype and shape; their bytes are copied once.

    Returns:
        The message.
    """
    message, places = allocate_frame(header, [array.nbytes for array in buffers])
    for array, place in zip(buffers, places, strict=True):
        if len(place):
            place[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return message


def allocate_frame(header: bytes, lengths: Sequence[int]) -> tuple[bytes, list[NDArray[np.uint8]]]:
    """Makes a message whose buffers are still to be filled, so that results are computed where they are sent from.

    Args:
        header: an encoded protobuf message.
        lengths: length of each buffer in bytes.

    Returns:
        The message, and a writable uint8 array over each of its buffers. Fill them all before the message is used,
        and do not use them after that: they are valid while the message is alive.
    """
    count = len(lengths)
    head = _FIXED.size + 8 * count + len(header)
    padded = [length + _ALIGN - 1 & -_ALIGN for length in lengths]
    position = _padded(head)
    total = position + sum(padded)
    message: bytes = _new_bytes(None, total)
    memory: memoryview = _view(_address(message), total, _WRITABLE)
    struct.pack_into(f"<4sIII{count}Q", memory, 0, _MAGIC, len(header), count, 0, *lengths)
    memory[head - len(header) : head] = header
    memory[head:position] = bytes(position - head)
    whole = np.frombuffer(memory, np.uint8)
    places = []
    for length, room in zip(lengths, padded, strict=True):
        places.append(whole[position : position + length])
        if room != length:
            whole[position + length : position + room] = 0
        position += room
    return message, places


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
    if _padded(head) + sum(map(_padded, lengths)) != len(message):
        raise InvalidInputError(
            f"a frame of {len(message)} bytes claims buffers of {sum(lengths)} bytes",
            fix="send a frame (see ps.proto)",
        )
    view = memoryview(message)
    buffers = []
    position = _padded(head)
    for length in lengths:
        buffers.append(view[position : position + length])
        position += _padded(length)
    return message[head - header_length : head], buffers


def _padded(length: int) -> int:
    return -(-length // _ALIGN) * _ALIGN
