"""A store in memory, as fsspec knows stores, some of whose answers fail, come short or are empty."""

from __future__ import annotations

import io
import random
from typing import Any, ClassVar

import fsspec
import fsspec.implementations.memory


class Faulty:
    """How often a store fails and in which ways."""

    draw = random.Random(1)
    share = 0.0
    ways = ("raise", "short", "empty")
    faults = 0


class _Part(io.BytesIO):
    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.details = {"name": name, "size": len(data), "ETag": str(hash(data))}

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if data and Faulty.draw.random() < Faulty.share:
            Faulty.faults += 1
            way = Faulty.draw.choice(Faulty.ways)
            if way == "raise":
                raise ConnectionResetError("reset by peer")
            return data[: len(data) // 2] if way == "short" else b""
        return data


class FaultyStore(fsspec.implementations.memory.MemoryFileSystem):  # type: ignore[misc]
    protocol = "faulty"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("faulty://", "/")))

    def unstrip_protocol(self, path: str) -> str:
        return f"faulty:/{path}"

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        found = dict(super().info(path, **kwargs))
        if found["type"] == "file":
            found["ETag"] = str(hash(bytes(self.store[self._strip_protocol(path)].getbuffer())))
        return found

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode != "rb":
            return super()._open(path, mode, **kwargs)
        if self._strip_protocol(path) not in self.store:
            raise FileNotFoundError(path)
        return _Part(bytes(self.store[self._strip_protocol(path)].getbuffer()), path)


fsspec.register_implementation("faulty", FaultyStore, clobber=True)
