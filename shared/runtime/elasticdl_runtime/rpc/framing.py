"""Frames: a small protobuf header and raw buffers in one message, without copies on the reading side.

The layout is described in ``ps.proto``.
"""

from __future__ import annotations

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


def encode_frame(header: bytes, buffers: Sequence[NDArray[Any]] = ()) -> bytes:
    """Packs a header and arrays into one message.

    Args:
        header: an encoded protobuf message.
        buffers: C-contiguous arrays of any dtype and shape; their bytes are copied once.

    Returns:
        The message.
    """
    lengths = [array.nbytes for array in buffers]
    head = _FIXED.size + 8 * len(lengths) + len(header)
    total = _padded(head) + sum(map(_padded, lengths))
    out = bytearray(total)
    _FIXED.pack_into(out, 0, _MAGIC, len(header), len(lengths), 0)
    struct.pack_into(f"<{len(lengths)}Q", out, _FIXED.size, *lengths)
    out[head - len(header) : head] = header
    position = _padded(head)
    view = memoryview(out)
    for array, length in zip(buffers, lengths, strict=True):
        if length:
            view[position : position + length] = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        position += _padded(length)
    return bytes(out)


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
