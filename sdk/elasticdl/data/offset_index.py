"""The byte offset of every Nth record of a file, and a folder where such indexes are kept between runs.

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
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.data.files import FileStamp

_MAGIC = b"EDLIDX1\n"
_UINT32 = struct.Struct("<I")

#: An offset is kept for every this many records; a scan hops over fewer than this many to its first record.
STRIDE = 64

#: Files below this size are indexed faster than a kept index is found.
_WORTH_KEEPING_BYTES = 4 << 20


@dataclass(frozen=True)
class OffsetIndex:
    """Where records begin.

    Attributes:
        records: number of records in the file.
        offsets: int64 ``[ceil(records / STRIDE)]``, the byte offset of records 0, STRIDE, 2 STRIDE, ...
        end: one past the last byte of the last record.
        damage: what ended the index early, for a reader that skips damage; else empty.
    """

    records: int
    offsets: npt.NDArray[np.int64]
    end: int
    damage: str = ""

    def byte_range(self, start: int, end: int) -> tuple[int, int, int]:
        """The bytes that hold records ``start`` to ``end``.

        Returns:
            The first byte, one past the last byte, and the index of the record at the first byte.
        """
        low = start // STRIDE
        high = -(-end // STRIDE)
        last = int(self.offsets[high]) if high < len(self.offsets) else self.end
        return int(self.offsets[low]), last, low * STRIDE


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
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, name = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
            try:
                with os.fdopen(descriptor, "wb") as output:
                    output.write(_encode(index, path, stamp))
                Path(name).replace(file)
            except OSError:
                Path(name).unlink(missing_ok=True)


def _encode(index: OffsetIndex, path: str, stamp: FileStamp) -> bytes:
    head = {
        "path": path, "size": stamp.size, "version": stamp.version, "stride": STRIDE,
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
    if (head["path"], head["size"], head["version"], head["stride"]) != (
        path, stamp.size, stamp.version, STRIDE,
    ):  # fmt: skip
        return None
    offsets = np.frombuffer(body, dtype="<i8", offset=start + length)
    return OffsetIndex(head["records"], offsets.astype(np.int64), head["end"], head["damage"])
