"""Frames: a small protobuf header and raw buffers in one message, without copies on the reading side.

The layout is described in ``ps.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
_PADDING = [bytes(-length % _ALIGN) for length in range(_ALIGN)]
"""By the length of what is padded, modulo the alignment."""
FrameBytes = bytes | memoryview
"""An encoded frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that is still to be joined into one message, which copies its buffers once.

    Attributes:
        header: an encoded protobuf message.
        buffers: arrays of any numeric dtype and shape; they must not change until the frame was encoded.
    """

    header: bytes
    buffers: Sequence[NDArray[Any]] = ()

    @property
    def nbytes(self) -> int:
        """About how long the message is."""
        return len(self.header) + sum(buffer.nbytes for buffer in self.buffers)

    def encode(self, what: int = 0, number: int = 0) -> bytes:
        """Joins the message, marked as ``frame_mark`` reads it.

        Args:
            what: 8 bits.
            number: 24 bits.
        """
        return b"".join(self.pieces(what, number))

    def pieces(self, what: int = 0, number: int = 0) -> list[bytes | memoryview]:
        """The message in pieces, the buffers' own memory among them; marked as by ``encode``."""
        arrays = [np.ascontiguousarray(buffer) for buffer in self.buffers]
        lengths = [array.nbytes for array in arrays]
        count = len(lengths)
        mark = what << _NUMBER_BITS | number
        fixed = struct.pack(f"<4sIII{count}Q", _MAGIC, len(self.header), count, mark, *lengths)
        pieces: list[bytes | memoryview] = [fixed, self.header, _PADDING[(len(fixed) + len(self.header)) % _ALIGN]]
        for array, length in zip(arrays, lengths, strict=True):
            if length:
                pieces += (array.reshape(-1).view(np.uint8).data, _PADDING[length % _ALIGN])
        return pieces


def encode_frame(header: bytes, buffers: Sequence[NDArray[Any]] = ()) -> bytes:
    """Packs a header and arrays into one message; see ``Frame``."""
    return Frame(header, buffers).encode()


def decode_frame(message: FrameBytes) -> tuple[bytes, list[memoryview]]:
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
    return bytes(view[head - header_length : head]), buffers


def mark_frame(message: FrameBytes, what: int, number: int) -> bytes:
    """A copy of an encoded frame with another mark; to encode a ``Frame`` with its mark saves the copy.

    Args:
        message: the frame.
        what: 8 bits.
        number: 24 bits.

    Raises:
        InvalidInputError: the message is no frame.
    """
    frame_mark(message)
    view, mark = memoryview(message), _MARK.pack(what << _NUMBER_BITS | number)
    return b"".join((view[:_MARK_AT], mark, view[_FIXED.size :]))


def frame_mark(message: FrameBytes) -> tuple[int, int]:
    """The mark of a frame; zeros if it has none.

    Raises:
        InvalidInputError: the message is no frame.
    """
    if len(message) < _FIXED.size or message[: len(_MAGIC)] != _MAGIC:
        raise InvalidInputError("the message is not a frame", fix="send a frame (see ps.proto)")
    mark: int = _MARK.unpack_from(message, _MARK_AT)[0]
    return mark >> _NUMBER_BITS, mark & NUMBERS - 1


def pieces_of(frame: Frame | bytes, what: int, number: int) -> list[bytes | memoryview]:
    """The pieces that ``as_message`` joins."""
    return frame.pieces(what, number) if isinstance(frame, Frame) else [mark_frame(frame, what, number)]


def as_message(frame: Frame | bytes, what: int = 0, number: int = 0) -> bytes:
    """The message of a frame that may have been encoded before.

    Args:
        frame: the frame.
        what: 8 bits of the mark.
        number: 24 bits of the mark; with ``what`` zero for a call that is not in a stream.

    Raises:
        InvalidInputError: a message that is to be marked is no frame.
    """
    if isinstance(frame, Frame):
        return frame.encode(what, number)
    return mark_frame(frame, what, number) if what or number else frame
