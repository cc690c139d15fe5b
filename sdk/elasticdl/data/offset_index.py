"""The byte offset of each record of a file, or of every Nth one of a long file, and a folder where indexes are kept.

An index file is ``magic, uint32 length, JSON, int64 offsets, uint32 CRC-32`` in little-endian order. It holds the
size and version of the data file, so an index of a changed file is built anew. The folder is a convenience: an
index that cannot be read or written costs time, never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.data.files import FileStamp
from elasticdl_runtime import durable

_MAGIC = b"EDLIDX2\n"
_UINT32 = struct.Struct("<I")

#: Of a file of more records an offset is kept for every this many; a scan hops over fewer than this to its first one.
STRIDE = 64
#: Up to so many records of a file, the offset of each is kept: 32 MiB.
EACH_UP_TO = 1 << 22

#: Files below this size are indexed faster than a kept index is found.
_WORTH_KEEPING_BYTES = 4 << 20


@dataclass(frozen=True)
class OffsetIndex:
    """Offsets of the beginnings of records.

    Attributes:
        records: number of records in the file.
        offsets: int64 ``[ceil(records / stride)]``, the byte offset of records 0, stride, 2 stride, ...
        end: one past the last byte of the last record.
        damage: what ended the index early, for a reader that skips damage; else empty.
        stride: records from one offset to the next.
    """

    records: int
    offsets: npt.NDArray[np.int64]
    end: int
    damage: str = ""
    stride: int = STRIDE

    def thinned(self) -> OffsetIndex:
        """The same with an offset for every ``STRIDE`` records."""
        offsets = self.offsets[:: STRIDE // self.stride].copy()
        return OffsetIndex(self.records, offsets, self.end, self.damage)

    def places(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Offsets of the beginnings and ends of some records; only where the offset of each is kept."""
        chosen = np.asarray(numbers, dtype=np.int64)
        ends = self.offsets[np.minimum(chosen + 1, self.records - 1)]
        ends[chosen == self.records - 1] = self.end
        starts: list[int] = self.offsets[chosen].tolist()
        return starts, ends.tolist()

    def byte_range(self, start: int, end: int) -> tuple[int, int, int]:
        """The bytes that hold records ``start`` to ``end``.

        Returns:
            The first byte, one past the last byte, and the index of the record at the first byte.
        """
        low = start // self.stride
        high = -(-end // self.stride)
        last = int(self.offsets[high]) if high < len(self.offsets) else self.end
        return int(self.offsets[low]), last, low * self.stride


class OffsetCollector:
    """Makes an index of the offsets of the records of a file, one after the other."""

    def __init__(self) -> None:
        self.records = 0
        self._stride = 1
        self._offsets = array("q")

    def add(self, starts: npt.NDArray[np.int64]) -> None:
        """Takes the offsets of the next records."""
        self._offsets.frombytes(np.ascontiguousarray(starts[-self.records % self._stride :: self._stride]).tobytes())
        self.records += len(starts)
        if self._stride == 1 and self.records > EACH_UP_TO:
            self._offsets, self._stride = self._offsets[::STRIDE], STRIDE

    def index(self, end: int, damage: str = "") -> OffsetIndex:
        """The index of all records so far."""
        offsets = np.frombuffer(self._offsets, dtype=np.int64) if self._offsets else np.empty(0, dtype=np.int64)
        return OffsetIndex(self.records, offsets, end, damage, self._stride)


class IndexFolder:
    """Keeps indexes between runs.

    Args:
        folder: where to keep them, or ``None`` to keep none.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @classmethod
    def of(cls, setting: str | bool | None) -> IndexFolder:
        """The folder of a reader parameter: a path, ``off``, or the user's cache folder by default."""
        if setting is False or setting == "off":
            return cls(None)
        if isinstance(setting, str):
            return cls(Path(setting))
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 (may lack a home)
        return cls(Path(base) / "elasticdl" / "indexes") if Path(base).is_absolute() else cls(None)

    def _file(self, path: str, how: Mapping[str, Any]) -> Path | None:
        if self.folder is None:
            return None
        key = json.dumps([path, sorted(how.items())])
        return self.folder / (hashlib.sha256(key.encode()).hexdigest()[:32] + ".idx")

    def load(self, path: str, stamp: FileStamp, how: Mapping[str, Any]) -> OffsetIndex | None:
        """The kept index of a file, if there is one for this very state of it.

        Args:
            path: the data file.
            stamp: its size and version now.
            how: the settings that the index depends on.
        """
        file = self._file(path, how)
        if file is None or stamp.size < _WORTH_KEEPING_BYTES or not stamp.version:
            return None
        try:
            return _decode(file.read_bytes(), path, stamp)
        except (OSError, ValueError, KeyError, struct.error):
            return None

    def save(self, path: str, stamp: FileStamp, how: Mapping[str, Any], index: OffsetIndex) -> None:
        """Keeps an index, if the folder can be written to."""
        file = self._file(path, how)
        if file is None or stamp.size < _WORTH_KEEPING_BYTES or not stamp.version:
            return
        with contextlib.suppress(OSError):
            durable.make_folder(file.parent, 0o700)
            durable.write(file, _encode(index, path, stamp), 0o600)


def _encode(index: OffsetIndex, path: str, stamp: FileStamp) -> bytes:
    head = {
        "path": path, "size": stamp.size, "version": stamp.version, "stride": index.stride,
        "records": index.records, "end": index.end, "damage": index.damage,
    }  # fmt: skip
    text = json.dumps(head).encode()
    body = _MAGIC + _UINT32.pack(len(text)) + text + index.offsets.astype("<i8").tobytes()
    return body + _UINT32.pack(zlib.crc32(body))


def _decode(data: bytes, path: str, stamp: FileStamp) -> OffsetIndex | None:
    body, (checksum,) = data[:-4], _UINT32.unpack(data[-4:])
    if not body.startswith(_MAGIC) or zlib.crc32(body) != checksum:
        return None
    (length,) = _UINT32.unpack_from(body, len(_MAGIC))
    start = len(_MAGIC) + _UINT32.size
    head = json.loads(body[start : start + length])
    if (head["path"], head["size"], head["version"]) != (path, stamp.size, stamp.version):
        return None
    offsets = np.frombuffer(body, dtype="<i8", offset=start + length)
    return OffsetIndex(head["records"], offsets.astype(np.int64), head["end"], head["damage"], head["stride"])
