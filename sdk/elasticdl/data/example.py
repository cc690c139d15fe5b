"""Encodes and decodes ``tf.train.Example`` messages without TensorFlow.

An Example is a map of names to lists of bytes, floats or integers. Its protobuf wire format is small and frozen:
``Example{1: Features}``, ``Features{1: entry*}``, ``entry{1: name, 2: Feature}``, ``Feature{1: BytesList | 2:
FloatList | 3: Int64List}``, each list with its values in field 1, numbers packed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticdl.data.errors import DataError

#: What a feature may be: one value or a list or array of them, of one type.
FeatureValue: TypeAlias = (
    "bytes | str | int | float | Sequence[bytes] | Sequence[str] | Sequence[int] | Sequence[float] | npt.NDArray[Any]"
)

_BYTES, _FLOAT, _INT64 = 1, 2, 3
_MASK64 = (1 << 64) - 1


def varint(value: int) -> bytes:
    """A protobuf varint of a non-negative integer below 2**64."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def varints(values: npt.NDArray[np.int64]) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Many varints at once; negative numbers take 10 bytes, as in protobuf's int64.

    Args:
        values: int64 ``[n]``.

    Returns:
        All varints one after the other, and the size of each, int64 ``[n]``.
    """
    rest = values.astype(np.uint64)
    columns = np.empty((len(values), 10), dtype=np.uint8)
    sizes = np.ones(len(values), dtype=np.int64)
    width = 0
    while True:
        low = (rest & np.uint64(0x7F)).astype(np.uint8)
        rest = rest >> np.uint64(7)
        more = rest > 0
        columns[:, width] = low | (more.astype(np.uint8) << 7)
        width += 1
        if not more.any():
            break
        sizes += more
    columns = columns[:, :width]
    return columns[np.arange(width) < sizes[:, None]].tobytes(), sizes


def length_delimited(number: int, data: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def encode_feature(value: FeatureValue, *, name: str = "") -> bytes:
    """One Feature message: strings and bytes become a bytes list, floats float32, integers and booleans int64.

    Raises:
        DataError: a type that Examples do not have, or an integer over 64 bits.
    """
    if isinstance(value, bytes | str | bytearray):
        value = [value.encode() if isinstance(value, str) else bytes(value)]
    if isinstance(value, list | tuple) and value and isinstance(value[0], bytes | str):
        strings = [item.encode() if isinstance(item, str) else bytes(item) for item in value]
        return length_delimited(_BYTES, b"".join(length_delimited(1, item) for item in strings))
    numbers = np.asarray(value).ravel()
    if numbers.dtype.kind == "f":
        return length_delimited(_FLOAT, length_delimited(1, numbers.astype("<f4").tobytes()) if numbers.size else b"")
    if numbers.dtype.kind in "iub":
        if numbers.dtype == np.uint64 and numbers.size and int(numbers.max()) > np.iinfo(np.int64).max:
            raise DataError(f"feature {name!r}: {numbers.max()} does not fit in int64", fix="use bytes or floats")
        return length_delimited(
            _INT64, length_delimited(1, varints(numbers.astype(np.int64))[0]) if numbers.size else b""
        )
    raise DataError(
        f"feature {name!r}: an Example cannot hold {numbers.dtype} values",
        fix="give bytes, strings, integers or floats, all of one type",
    )


def encode_example(features: Mapping[str, FeatureValue]) -> bytes:
    """A serialised ``tf.train.Example``; equal features give equal bytes (names are sorted).

    Args:
        features: name to value; arrays of any shape are flattened in C order.

    Raises:
        DataError: a value of a type that Examples do not have.
    """
    entries = (
        length_delimited(
            1, length_delimited(1, name.encode()) + length_delimited(2, encode_feature(features[name], name=name))
        )
        for name in sorted(features)
    )
    features_message = b"".join(entries)
    return length_delimited(1, features_message) if features_message else b""


def decode_example(data: bytes) -> dict[str, list[bytes] | list[float] | list[int]]:
    """The features of a serialised ``tf.train.Example``.

    Raises:
        DataError: the bytes are not an Example.
    """
    try:
        features: dict[str, list[bytes] | list[float] | list[int]] = {}
        for number, message in _fields(data):
            if number != 1 or not isinstance(message, bytes):
                raise ValueError(f"field {number}")
            for _, entry in _fields(message):
                name, feature = b"", b""
                for part, content in _fields(_as_bytes(entry)):
                    name, feature = (content, feature) if part == 1 else (name, content)  # type: ignore[assignment]
                features[name.decode()] = _decode_feature(feature)
        return features
    except (ValueError, IndexError, struct.error, UnicodeDecodeError) as error:
        raise DataError(
            f"the record is not a tf.train.Example: {error}", fix="check how the records were written"
        ) from None


def _as_bytes(value: bytes | int) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where a message should be")
    return value


def _decode_feature(data: bytes) -> list[bytes] | list[float] | list[int]:
    for kind, message in _fields(data):
        values = [value for number, value in _fields(_as_bytes(message)) if number == 1]
        if kind == _BYTES:
            return [_as_bytes(value) for value in values]
        if kind == _FLOAT:
            floats: list[float] = np.frombuffer(b"".join(map(_as_bytes, values)), dtype="<f4").tolist()
            return floats
        if kind == _INT64:
            numbers: list[int] = []
            for value in values:  # packed, or one field for each number
                numbers.extend([value] if isinstance(value, int) else _unpack(value))
            return [number - (1 << 64) if number >> 63 else number for number in numbers]
    return []


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a message: length-delimited and 32-bit ones as bytes, varints as numbers."""
    position = 0
    while position < len(data):
        key, position = _read_varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _read_varint(data, position)
            yield number, value
            continue
        if wire == 2:
            length, position = _read_varint(data, position)
        elif wire == 5:
            length = 4
        else:
            raise ValueError(f"wire type {wire}")
        if position + length > len(data):
            raise ValueError("a field passes the end of the record")
        yield number, data[position : position + length]
        position += length


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, position
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _unpack(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        value, position = _read_varint(data, position)
        yield value
