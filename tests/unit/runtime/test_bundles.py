"""Bundles: the same code gives the same bytes; whatever comes in, nothing leaves its directory."""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime import bundles
from elasticdl_runtime.bundles import (
    digest_hex,
    digest_of,
    examine_bundle,
    pack_bundle,
    unpack_bundle,
    unpack_zoo,
    unpacked_zoo,
)

pytestmark = pytest.mark.unit


def _zoo(root: Path) -> Path:
    (root / "zoo" / "sub" / "__pycache__").mkdir(parents=True)
    (root / "zoo" / ".git").mkdir()
    (root / "zoo" / "model.py").write_text("x = 1\n")
    (root / "zoo" / "sub" / "vocabulary.txt").write_text("a\nb\n")
    (root / "zoo" / "sub" / "__pycache__" / "m.pyc").write_bytes(b"x")
    (root / "zoo" / ".git" / "config").write_text("secret")
    (root / "zoo" / ".env").write_text("secret")
    return root / "zoo"


def _write(path: Path, members: list[tuple[zipfile.ZipInfo | str, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members:
            archive.writestr(member, data)
    return path


def _member(name: str, mode: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def test_what_an_ignore_file_names_does_not_travel(tmp_path: Path) -> None:
    zoo = _zoo(tmp_path)
    (zoo / "notes").mkdir()
    for name in ("notes/a.md", "notes/kept.md", "big.bin", "sub/big.bin"):
        (zoo / name).write_text("x")
    (zoo / ".elasticdlignore").write_text("# what is not code\n/big.bin\nnotes/*\n!notes/kept.md\nvocabulary.*\n")
    with zipfile.ZipFile(io.BytesIO(pack_bundle(zoo)[0])) as archive:
        assert archive.namelist() == ["model.py", "notes/kept.md", "sub/big.bin"]
    (zoo / "linked").symlink_to(tmp_path)
    (zoo / ".elasticdlignore").write_text("linked\nsub/\nnotes/\n")
    with zipfile.ZipFile(io.BytesIO(pack_bundle(zoo)[0])) as archive:
        assert archive.namelist() == ["big.bin", "model.py"]
    (zoo / ".elasticdlignore").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInputError, match="elasticdlignore cannot be read"):
        pack_bundle(zoo)


def test_round_trip_without_hidden_and_compiled_files(tmp_path: Path) -> None:
    data, digest = pack_bundle(_zoo(tmp_path))
    assert digest == digest_of(data)
    path = tmp_path / "b.zip"
    path.write_bytes(data)
    target = unpack_bundle(path, tmp_path / "job" / "code")
    found = sorted(p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file())
    assert found == ["model.py", "sub/vocabulary.txt"]
    assert (target / "model.py").read_text() == "x = 1\n"
    assert [p.name for p in (tmp_path / "job").iterdir()] == ["code"]


def test_packing_depends_on_names_and_contents_only(tmp_path: Path) -> None:
    zoo = _zoo(tmp_path)
    first = pack_bundle(zoo)
    os.utime(zoo / "model.py", (1, 1))
    (zoo / "model.py").chmod(0o600)
    assert pack_bundle(str(zoo)) == first
    (zoo / "model.py").write_text("x = 2\n")
    assert pack_bundle(zoo)[1] != first[1]


@pytest.mark.parametrize(
    ("comment", "name"),
    [
        (b"my_zoo", "my_zoo"),
        (b"", "model_zoo"),
        (b"../out", "model_zoo"),
        (b".hidden", "model_zoo"),
        (b"\xff", "model_zoo"),
    ],
)
def test_a_zoo_keeps_its_name(tmp_path: Path, comment: bytes, name: str) -> None:
    path = tmp_path / "b.zip"
    path.write_bytes(pack_bundle(_zoo(tmp_path))[0])
    with zipfile.ZipFile(path, "a") as archive:
        assert archive.comment == b"zoo"
        archive.comment = comment
    folder = tmp_path / "job" / "code"
    assert unpacked_zoo(folder) is None
    assert unpack_zoo(path, folder) == unpacked_zoo(folder) == folder / name
    assert (folder / name / "model.py").is_file()


def test_unpacking_again_leaves_what_is_there(tmp_path: Path) -> None:
    path = _write(tmp_path / "b.zip", [("model.py", b"new")])
    target = tmp_path / "code"
    target.mkdir()
    unpack_bundle(path, target)  # an empty directory may be there already
    assert (target / "model.py").read_text() == "new"
    (target / "model.py").write_text("old")
    assert unpack_bundle(path, target) == target
    assert (target / "model.py").read_text() == "old"


def test_packing_refuses_what_is_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="no directory"):
        pack_bundle(tmp_path / "none")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(InvalidInputError, match="no Python file"):
        pack_bundle(tmp_path)
    (tmp_path / "a.py").write_text("a")
    monkeypatch.setattr(bundles, "MAX_FILES", 1)
    with pytest.raises(InvalidInputError, match="too much"):
        pack_bundle(tmp_path)
    monkeypatch.setattr(bundles, "MAX_FILES", 10)
    monkeypatch.setattr(bundles, "MAX_ZIP_BYTES", 10)
    with pytest.raises(InvalidInputError, match="at most"):
        pack_bundle(tmp_path)
    monkeypatch.setattr(bundles, "MAX_FILE_BYTES", 0)
    with pytest.raises(InvalidInputError, match="small files"):
        pack_bundle(tmp_path)


def test_packing_refuses_what_unpacking_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo = _zoo(tmp_path)
    monkeypatch.setattr(bundles, "MAX_FOLDERS", 0)
    with pytest.raises(InvalidInputError, match="more than 0 folders"):
        pack_bundle(zoo)
    monkeypatch.setattr(bundles, "MAX_FOLDERS", 10)
    monkeypatch.setattr(bundles, "MAX_DEPTH", 0)
    with pytest.raises(InvalidInputError, match="deep"):
        pack_bundle(zoo)
    monkeypatch.setattr(bundles, "MAX_DEPTH", 10)
    (zoo / "a:b.py").write_text("")
    with pytest.raises(InvalidInputError, match="name that is not taken"):
        pack_bundle(zoo)


def test_many_folders_in_a_small_zip_are_refused(tmp_path: Path) -> None:
    names = ["/".join(f"{n}.{depth}" for depth in range(20)) + "/x.py" for n in range(101)]
    path = _write(tmp_path / "b.zip", [(name, b"") for name in names])
    with pytest.raises(InvalidInputError, match="more than 2000 folders"):
        unpack_bundle(path, tmp_path / "code")
    assert [p.name for p in tmp_path.iterdir()] == ["b.zip"]


def test_members_are_counted_before_objects_are_made_of_them(tmp_path: Path) -> None:
    """The directory of a zip of 64 MiB may name a million members, whatever number stands at its end."""
    path = _write(tmp_path / "b.zip", [(f"{n}", b"") for n in range(10_001)])
    data = bytearray(path.read_bytes())
    end = data.rindex(b"PK\5\6")
    struct.pack_into("<2H", data, end + 8, 1, 1)
    path.write_bytes(data)
    with pytest.raises(InvalidInputError, match="more than 10000 members"):
        unpack_bundle(path, tmp_path / "code")


def test_a_zip_of_the_large_kind_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "b.zip", [("a.py", b"x")])
    data = path.read_bytes()
    end = data.rindex(b"PK\5\6")
    path.write_bytes(data[:end] + b"PK\6\7" + b"\0" * 16 + data[end:])
    with pytest.raises(InvalidInputError, match="4 GiB"):
        unpack_bundle(path, tmp_path / "code")


def test_examining_refuses_what_unpacking_refuses_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path / "b.zip", [("a.py", b"\0" * 30_000), ("folder/", b""), ("folder/b.txt", b"text")])
    examine_bundle(path)
    unpack_bundle(path, tmp_path / "modules", suffix=".py")
    assert [p.name for p in (tmp_path / "modules").rglob("*")] == ["a.py"]
    monkeypatch.setattr(bundles, "MAX_UNPACKED_BYTES", 10_000)
    with pytest.raises(InvalidInputError, match="unpacks to more"):
        examine_bundle(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.zip", "modules"]


def test_packing_refuses_links_that_leave_the_zoo(tmp_path: Path) -> None:
    zoo = _zoo(tmp_path)
    (tmp_path / "secret").write_text("s")
    (zoo / "inner.py").symlink_to(zoo / "model.py")
    pack_bundle(zoo)
    (zoo / "leak.py").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidInputError, match="leaves"):
        pack_bundle(zoo)


def test_linked_folders_are_packed_and_broken_links_refused(tmp_path: Path) -> None:
    """A linked folder was left out, and its modules were missing on the cluster only."""
    zoo = _zoo(tmp_path)
    (zoo / "v1").mkdir()
    (zoo / "v1" / "net.py").write_text("x = 1\n")
    (zoo / "latest").symlink_to("v1")
    content, _ = pack_bundle(zoo)
    assert {"latest/net.py", "v1/net.py"} <= set(zipfile.ZipFile(io.BytesIO(content)).namelist())
    for target, why in (("..", "leaves"), (".", "leads to a folder that holds it"), ("gone", "leads to nothing")):
        (zoo / "again").symlink_to(target)
        with pytest.raises(InvalidInputError, match=f"again is a link that {why}"):
            pack_bundle(zoo)
        (zoo / "again").unlink()


@pytest.mark.parametrize(
    "name",
    ["../x.py", "/x.py", "a/../../x.py", "a//b.py", "./a.py", "a\\b.py", "c:x.py", "a/\x07.py", "x" * 300, "..", "/"],
)
def test_names_that_leave_or_confuse_are_refused(tmp_path: Path, name: str) -> None:
    path = _write(tmp_path / "b.zip", [(_member(name), b"evil")])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidInputError, match="refused"):
        unpack_bundle(path, tmp_path / "code")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK, stat.S_IFDIR])
def test_links_and_special_files_are_refused(tmp_path: Path, kind: int) -> None:
    path = _write(tmp_path / "b.zip", [(_member("a.py", kind | 0o777), b"/etc/passwd")])
    with pytest.raises(InvalidInputError, match="link or a special file"):
        unpack_bundle(path, tmp_path / "code")


@pytest.mark.parametrize(
    "members", [["a", "a"], ["a", "a/b"], ["a/b", "a"]], ids=["twice", "file as directory", "directory as file"]
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_that_collide_are_refused(tmp_path: Path, members: list[str]) -> None:
    path = _write(tmp_path / "b.zip", [(name, b"x") for name in members])
    with pytest.raises(InvalidInputError, match="twice"):
        unpack_bundle(path, tmp_path / "code")


def test_bombs_are_stopped_by_counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_UNPACKED_BYTES", 100_000)
    path = _write(tmp_path / "b.zip", [(f"{n}.py", b"\0" * 30_000) for n in range(4)])
    with pytest.raises(InvalidInputError, match="unpacks to more"):
        unpack_bundle(path, tmp_path / "code")
    monkeypatch.setattr(bundles, "MAX_FILES", 3)
    with pytest.raises(InvalidInputError, match="more than 3 members"):
        unpack_bundle(path, tmp_path / "code")
    assert [p.name for p in tmp_path.iterdir()] == ["b.zip"]


def test_a_header_that_lies_about_the_size_is_not_believed(tmp_path: Path) -> None:
    path = _write(tmp_path / "b.zip", [("a.py", b"\0" * 50_000)])
    data = bytearray(path.read_bytes())
    central = data.index(b"PK\x01\x02")
    struct.pack_into("<I", data, central + 24, 10)  # uncompressed size
    path.write_bytes(data)
    with pytest.raises(InvalidInputError, match="refused"):
        unpack_bundle(path, tmp_path / "code")


def test_other_compressions_and_encryption_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.py", b"x" * 100)
    with pytest.raises(InvalidInputError, match="other than deflate"):
        unpack_bundle(path, tmp_path / "code")
    _write(path, [("a.py", b"x")])
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    path.write_bytes(data)
    with pytest.raises(InvalidInputError, match="encrypted"):
        unpack_bundle(path, tmp_path / "code")


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:" + "A" * 64, "sha256:../../x", "md5:" + "0" * 64])
def test_what_is_no_digest_is_refused(digest: str) -> None:
    with pytest.raises(InvalidInputError, match="not the digest"):
        digest_hex(digest)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_bundle_is_refused_or_unpacked_inside(tmp_path_factory: pytest.TempPathFactory, data) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.py", b"x = 1\n" * 20)
        archive.writestr("sub/data.txt", b"abc")
    content = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    (folder / "b.zip").write_bytes(content)
    try:
        unpack_bundle(folder / "b.zip", folder / "code")
    except InvalidInputError:
        assert [p.name for p in folder.iterdir()] == ["b.zip"]
    else:
        assert sorted(p.name for p in folder.iterdir()) in (["b.zip", "code"], ["b.zip"])


def test_data_of_the_job_in_its_zoo_stay_behind(tmp_path: Path) -> None:
    zoo = _zoo(tmp_path)
    for name in ("data/train/part-0", "data/train/part-1", "data/other/part-0", "rows.csv"):
        (zoo / name).parent.mkdir(parents=True, exist_ok=True)
        (zoo / name).write_text("records")
    origins = [f"{zoo}/data/train/part-*, s3://bucket/rows.csv", f"{zoo}/data/other", str(zoo), f"{zoo}/rows.csv"]
    content, _ = pack_bundle(zoo, data=origins)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.namelist() == ["model.py", "sub/vocabulary.txt"]
