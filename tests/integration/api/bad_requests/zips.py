"""Bundles that are refused, wherever their lie is."""

from __future__ import annotations

import io
import stat
import struct
import zipfile

from elasticdl_runtime.bundles import digest_of
from tests.integration.api.bad_requests.case import Case
from tests.integration.api.conftest import make_zip


def _put(what: str, data: bytes, status: int = 422, code: str = "invalid_input", digest: str = "") -> Case:
    path = f"/bundles/{digest or digest_of(data)}"
    return Case(f"a bundle {what}", "PUT", path, status, code, body=data, content_type="application/zip")


def _typed(name: str, mode: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        archive.writestr(info, b"/etc/passwd")
    return buffer.getvalue()


def _changed(data: bytes, signature: bytes, offset: int, kind: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(kind, changed, changed.rindex(signature) + offset, value)
    return bytes(changed)


def _method(method: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("a.py", b"x" * 1000)
    return buffer.getvalue()


_GOOD = make_zip({"a.py": b"x = 1\n" * 100, "b/c.txt": b"text"})
_NAMES = (
    "../a.py",
    "/a.py",
    "a/../../b.py",
    "a//b.py",
    "./a.py",
    "a\\b.py",
    "c:x.py",
    "a\x07.py",
    "x" * 300,
    "..",
    "a/./b",
)
CASES = [
    *(_put(f"with a member {name[:20]!r}", make_zip({name: b"x"})) for name in _NAMES),
    *(
        _put(f"with a member of kind {kind:o}", _typed("a.py", kind | 0o777))
        for kind in (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK, stat.S_IFDIR)
    ),
    _put("with a file as a folder", make_zip({"a": b"", "a/b.py": b""})),
    _put(
        "with 2,020 folders", make_zip({"/".join(f"{n}.{d}" for d in range(20)) + "/x.py": b"" for n in range(101)})
    ),
    _put("21 folders deep", make_zip({"a/" * 21 + "x.py": b""})),
    _put("with 10,001 members", make_zip({f"{n}.py": b"" for n in range(10_001)})),
    _put("of LZMA", _method(zipfile.ZIP_LZMA)),
    _put("of bzip2", _method(zipfile.ZIP_BZIP2)),
    _put("that is encrypted", _changed(_GOOD, b"PK\1\2", 8, "<H", 1)),
    _put("with another checksum", _changed(_GOOD, b"PK\1\2", 16, "<I", 1)),
    _put("with an offset that is nowhere", _changed(_GOOD, b"PK\1\2", 42, "<I", 2**31)),
    _put("with a directory that is nowhere", _changed(_GOOD, b"PK\5\6", 16, "<I", 2**31)),
    _put("with a directory of no size", _changed(_GOOD, b"PK\5\6", 12, "<I", 2**31)),
    _put("cut off", _GOOD[:-30]),
    _put("cut off at its beginning", _GOOD[40:]),
    _put("of nothing", b""),
    _put("that is text", b"def custom_model(): ...\n" * 100),
    _put("that is a tar", b"\0" * 10_240),
    _put("of another digest", _GOOD, 400, "malformed", "sha256:" + "3" * 64),
]
