from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import fsspec.implementations.memory
import pytest
from fsspec.spec import AbstractFileSystem

from elasticdl.data import create_data_reader, files, fingerprints
from elasticdl.data.errors import DataError, ReaderParamsError
from elasticdl.data.recordio import Writer
from elasticdl_core.shard import Shard

pytestmark = pytest.mark.unit


def _recordio(path: Path, count: int = 3) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with Writer(path) as writer:
        for n in range(count):
            writer.write(f"{path.name}:{n}".encode())
    return path


def test_directories_are_walked_in_order_without_markers(tmp_path: Path) -> None:
    for name in ("b.x", "a/2.x", "a/1.x", "_SUCCESS", ".hidden", "a/.tmp/3.x", "c.idx"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert list(files.list_files(str(tmp_path))) == [str(tmp_path / name) for name in ("a/1.x", "a/2.x", "b.x")]


def test_listing_is_lazy(tmp_path: Path) -> None:
    (tmp_path / "a.x").write_bytes(b"")
    (tmp_path / "b").mkdir()
    found = files.list_files(str(tmp_path))
    assert next(found) == str(tmp_path / "a.x")
    (tmp_path / "b" / "late.x").write_bytes(b"")
    assert list(found) == [str(tmp_path / "b" / "late.x")]


def test_lists_globs_and_urls_may_be_mixed_and_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a,b.x", "c.x", "d.x"):
        (tmp_path / name).write_bytes(b"")
    assert list(files.list_files("a,b.x")) == [str(tmp_path / "a,b.x")]
    assert list(files.list_files(f"file://{tmp_path}/d.x, ?.x")) == [str(tmp_path / "d.x"), str(tmp_path / "c.x")]


@pytest.fixture
def memory() -> Iterator[str]:
    fs = fsspec.filesystem("memory")
    yield "memory://data"
    fs.rm("/data", recursive=True)


def test_remote_data_is_read(tmp_path: Path, memory: str) -> None:
    fs = fsspec.filesystem("memory")
    for name in ("1.recordio", "2.recordio"):
        fs.pipe(f"/data/{name}", _recordio(tmp_path / name).read_bytes())
    fs.pipe("/data/_SUCCESS", b"")
    for origin in (memory, f"{memory}/*.recordio"):
        reader = create_data_reader(origin)
        shards = list(reader.create_shards())
        assert [shard.end for shard in shards] == [3, 3]
        assert all(shard.name.startswith("memory://") for shard in shards)
        records = [record for shard in shards for record in reader.read_records(shard)]
        assert records[2:4] == [b"1.recordio:2", b"2.recordio:0"]


def test_remote_csv_and_tfrecord_are_read(memory: str) -> None:
    from elasticdl.data.tfrecord import encode_record

    fs = fsspec.filesystem("memory")
    fs.pipe("/data/a.csv", b"x,y\n1,2\n3,4\n")
    fs.pipe("/data/b.tfrecord", encode_record(b"one") + encode_record(b"two"))
    for name, expected in (("a.csv", [["1", "2"], ["3", "4"]]), ("b.tfrecord", [b"one", b"two"])):
        reader = create_data_reader(f"{memory}/{name}")
        assert [record for shard in reader.create_shards() for record in reader.read_records(shard)] == expected


def test_a_missing_remote_path_is_refused(memory: str) -> None:
    fsspec.filesystem("memory").pipe("/data/a.csv", b"x,y\n1,2\n")
    with pytest.raises(DataError, match="no such file"):
        create_data_reader(f"{memory}/nonesuch.csv")
    with pytest.raises(DataError, match="nonesuch:// URL"):
        create_data_reader("nonesuch://a/b")


def test_missing_paths_suggest_near_names(tmp_path: Path) -> None:
    _recordio(tmp_path / "train" / "a.recordio")
    for wrong in ("trian", "trian/a.recordio"):
        with pytest.raises(DataError, match="no such file") as caught:
            create_data_reader(str(tmp_path / wrong))
        assert f"did you mean {tmp_path}/train?" in caught.value.fix
    with pytest.raises(DataError) as caught:
        create_data_reader(str(tmp_path / "zzzzzz"))
    assert "holds train" in caught.value.fix


def test_empty_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "hollow").mkdir()
    (tmp_path / "hollow" / "a.recordio").write_bytes(b"")
    (tmp_path / "void").write_bytes(b"")
    for origin, message in (
        ("empty", "holds no data files"),
        ("*.csv", "matches no file"),
        ("void", "all files are empty"),
    ):
        with pytest.raises(DataError, match=message):
            create_data_reader(str(tmp_path / origin))
    with pytest.raises(DataError, match="the data path is empty"):
        create_data_reader(" , ")
    with pytest.raises(DataError, match="hold no record"):
        list(create_data_reader(str(tmp_path / "hollow")).create_shards())


def test_kinds_are_recognised_by_content(tmp_path: Path) -> None:
    from elasticdl.data.tfrecord import encode_record

    _recordio(tmp_path / "a-0-1")
    (tmp_path / "b-of-2").write_bytes(encode_record(b"x"))
    (tmp_path / "c.txt").write_text("1,2\n3,4\n")
    kinds = {name: create_data_reader(str(tmp_path / name)).metadata.kind for name in ("a-0-1", "b-of-2", "c.txt")}
    assert kinds == {"a-0-1": "recordio", "b-of-2": "tfrecord", "c.txt": "csv"}
    with pytest.raises(DataError, match="files of several kinds") as caught:
        create_data_reader(str(tmp_path))
    assert "a-0-1" in caught.value.message


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.parquet", b"\x89HDF....", "is an HDF5 file"),
        ("a.bin", b"\0\1\2\3", "of an unknown kind \\(first bytes 00 01 02 03"),
        ("a.csv", b"\x1f\x8b\x08\0", "compressed with gzip"),
        ("a.tfrecord", b"\4\3\2\1" + bytes(16), "is named .tfrecord but its bytes are recordio"),
    ],
)
def test_foreign_files_are_refused(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        create_data_reader(str(tmp_path / name))


def test_a_kind_can_be_given(tmp_path: Path) -> None:
    _recordio(tmp_path / "a.tfrecord")
    assert create_data_reader(str(tmp_path / "a.tfrecord"), reader_params="kind=recordio").metadata.kind == "recordio"
    with pytest.raises(ReaderParamsError, match="no reader 'hdf5'"):
        create_data_reader(str(tmp_path), reader_params={"kind": "hdf5"})


def test_unknown_parameters_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(ReaderParamsError, match="no parameter 'on_corupt'") as caught:
        create_data_reader(str(_recordio(tmp_path / "a.recordio")), reader_params="on_corupt=skip")
    assert "did you mean on_corrupt?" in caught.value.fix


def test_unreadable_files_are_refused(open_folder: Path) -> None:
    path = _recordio(open_folder / "a.recordio")
    locked = _recordio(open_folder / "locked" / "b.recordio")
    path.chmod(0)
    locked.parent.chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    for unreadable in (path, locked, locked.parent):
        with pytest.raises(DataError, match="permission denied") as caught:
            create_data_reader(str(unreadable))
        assert "readable" in caught.value.fix


def test_shards_are_cut_and_cover_all(tmp_path: Path) -> None:
    for name, count in (("a", 5), ("b", 0), ("c", 4)):
        _recordio(tmp_path / f"{name}.recordio", count)
    reader = create_data_reader(str(tmp_path), records_per_task=2)
    shards = list(reader.create_shards())
    assert [(Path(s.name).stem, s.start, s.end) for s in shards] == [
        ("a", 0, 2), ("a", 2, 4), ("a", 4, 5), ("c", 0, 2), ("c", 2, 4),
    ]  # fmt: skip
    assert sum(len(list(reader.read_records(s))) for s in shards) == 9
    with pytest.raises(DataError, match="records_per_task is 0"):
        create_data_reader(str(tmp_path), records_per_task=0)


def test_shards_come_while_later_files_are_not_yet_written(tmp_path: Path) -> None:
    _recordio(tmp_path / "a" / "1.recordio")
    (tmp_path / "b").mkdir()
    reader = create_data_reader(f"{tmp_path / 'a'},{tmp_path / 'b'}", reader_params={"kind": "recordio"})
    shards = reader.create_shards()
    assert next(shards) == Shard(str(tmp_path / "a" / "1.recordio"), 0, 3)
    _recordio(tmp_path / "b" / "2.recordio", 7)
    assert [s.end for s in shards] == [7]


def test_a_shard_can_be_any_object_with_name_start_and_end(tmp_path: Path) -> None:
    class Piece:
        name = str(_recordio(tmp_path / "a.recordio"))
        start = 1
        end = 3

    reader = create_data_reader(Piece.name)
    assert list(reader.read_records(Piece())) == [b"a.recordio:1", b"a.recordio:2"]
    assert list(reader.read_batches(Piece(), 1)) == [[b"a.recordio:1"], [b"a.recordio:2"]]


def test_a_name_that_is_not_utf_8_is_listed_as_a_url(tmp_path: Path) -> None:
    """It came as it is, which neither gRPC nor JSON nor Postgres takes: masters died of it, and jobs never ended."""
    folder = os.fsencode(tmp_path)
    Path(os.fsdecode(folder + b"/d\xff.csv")).write_text("a,b\n1,2\n")
    (tmp_path / "dä ta.csv").write_text("a,b\n3,4\n")
    for origin in (str(tmp_path), f"{tmp_path}/*.csv", tmp_path.as_uri()):
        found = list(files.list_files(origin))
        assert [Path(name).name for name in found] == ["dä ta.csv", "d%FF.csv"]
        assert found[1].startswith("file:///")
        assert [name.encode().decode() for name in found] == found
        assert [files.stamp(name).size for name in found] == [8, 8]
    reader = create_data_reader(str(tmp_path))
    assert [list(reader.read_records(shard)) for shard in reader.create_shards()] == [[["3", "4"]], [["1", "2"]]]
    assert list(files.list_files((tmp_path / "dä ta.csv").as_uri())) == [str(tmp_path / "dä ta.csv")]


def test_a_file_in_an_archive_keeps_the_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in.tsv", "a\tb\n1\t2\n")
        archive.writestr("deep/er.tsv", "a\tb\n3\t4\n")
    for inside, rows in (("in.tsv", [["1", "2"]]), ("deep/*.tsv", [["3", "4"]])):
        url = f"zip://{inside}::{tmp_path}/a.zip"
        reader = create_data_reader(url)
        (shard,) = reader.create_shards()
        assert shard.name == url.replace("*", "er")
        assert list(reader.read_records(shard)) == rows


def test_each_file_comes_once_whatever_it_is_called(tmp_path: Path) -> None:
    """``latest -> v1`` beside ``v1`` trained each record twice."""
    for name in ("v1/a.x", "v1/b.x", "v2/c.x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "latest").symlink_to("v1")
    (tmp_path / "v2" / "d.x").symlink_to("c.x")
    os.link(tmp_path / "v2" / "c.x", tmp_path / "v2" / "e.x")
    expected = ["latest/a.x", "latest/b.x", "v2/c.x"]
    assert list(files.list_files(str(tmp_path))) == [str(tmp_path / name) for name in expected]
    assert len(list(files.list_files(f"{tmp_path}/**/*.x"))) == 3
    both = f"{tmp_path}/v2/d.x,{tmp_path}/v2"
    assert list(files.list_files(both)) == [str(tmp_path / "v2" / "d.x")]


class BucketEntry:
    """An entry of a mounted bucket, of which a listing gives no number of its own."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self._entry = entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def inode(self) -> int:
        return 2


def test_files_of_a_mounted_bucket_are_all_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text("a\n1\n")
    scandir = os.scandir

    @contextlib.contextmanager
    def of_bucket(folder: Any) -> Iterator[Iterator[BucketEntry]]:
        with scandir(folder) as entries:
            yield map(BucketEntry, entries)

    monkeypatch.setattr(files.os, "scandir", of_bucket)
    assert len(list(files.list_files(str(tmp_path)))) == 3


@pytest.mark.parametrize("pattern", ["", "/*"])
def test_a_link_to_nothing_is_refused(pattern: str, tmp_path: Path) -> None:
    """Data of git-annex that is not there was left out, and "every record was processed"."""
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "b.csv").symlink_to(".git/annex/objects/x")
    with pytest.raises(DataError, match=r"b\.csv: is a link to \.git/annex/objects/x, which is not there") as caught:
        list(files.list_files(f"{tmp_path}{pattern}"))
    assert "git annex get" in caught.value.fix


def test_a_link_to_a_directory_that_holds_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d" / "deep").mkdir(parents=True)
    (tmp_path / "d" / "a.x").write_bytes(b"1")
    (tmp_path / "d" / "deep" / "up").symlink_to("..")
    with pytest.raises(DataError, match=r"deep/up: is a link to .*/d, which holds it"):
        list(files.list_files(str(tmp_path / "d")))
    (tmp_path / "d" / "deep" / "up").unlink()
    (tmp_path / "d" / "loop.x").symlink_to("loop.x")
    with pytest.raises(DataError, match=r"loop\.x: cannot be read"):
        list(files.list_files(str(tmp_path / "d")))


def test_files_that_change_while_they_are_read_are_refused(tmp_path: Path) -> None:
    """A file that was overwritten in the same size went unnoticed: half of its records were of the new one."""
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n3,4\n")
    reader = create_data_reader(str(path))
    (shard,) = reader.create_shards()
    assert len(list(reader.read_records(shard))) == 2
    path.write_text("a,b\n5,6\n7,8\n")
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match=r"a\.csv: was changed after it was first read: it was .*, it is "):
        list(reader.read_records(shard))
    with pytest.raises(DataError, match="was changed"):
        reader.read_ranges([shard])
    assert list(create_data_reader(str(path)).read_records(shard)) == [["5", "6"], ["7", "8"]]


@pytest.mark.parametrize("first", [b"", b"a,b\n"])
def test_a_first_file_without_records_is_fine(first: bytes, tmp_path: Path) -> None:
    """Those who write in parts leave some empty, and a marker."""
    (tmp_path / "_SUCCESS").write_bytes(b"")
    (tmp_path / "part-00000.csv").write_bytes(first)
    (tmp_path / "part-00001.csv").write_bytes(b"a,b\n1,2\n")
    for origin in (str(tmp_path), f"{tmp_path}/*"):
        reader = create_data_reader(origin)
        assert [list(reader.read_records(shard)) for shard in reader.create_shards()] == [[["1", "2"]]]
    (tmp_path / "part-00001.csv").write_bytes(b"")
    (tmp_path / "part-00000.csv").write_bytes(b"")
    with pytest.raises(DataError, match="all files are empty"):
        create_data_reader(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "message", "fix"),
    [
        ("a.jsonl", b'{"a": 1, "b": 2}\n{"a": 3, "b": 4}\n', "is JSON lines, not a table", "kind=csv"),
        ("rows", b'{"a": 1, "b": 2}\n{"a": 3, "b": 4}\n', "is JSON, not a table", "kind=csv"),
        ("README.md", b"Data, of 2019\n\nIt is good, mostly\n", "is Markdown, not a table", "leave it out"),
        ("README", b"Data, of 2019\nIt is, mostly, good\n", "of an unknown kind", "kind="),
        ("a.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "Git LFS", "git lfs pull"),
        ("a.tfrecord", b"\x78\x9c" + bytes(50), "compressed with zlib", "convert it"),
        ("a.csv", b"PK\x03\x04" + bytes(50), "a zip archive", "convert it"),
        ("a.csv", b"BZh9" + bytes(50), "compressed with bzip2", "convert it"),
        ("a.csv", b"\x89HDF" + bytes(50), "an HDF5 file", "convert it"),
    ],
)
def test_what_is_no_table_is_called_by_its_name(
    name: str, content: bytes, message: str, fix: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        create_data_reader(str(tmp_path / name))
    assert message in caught.value.message
    assert fix in caught.value.fix


def test_tables_without_a_suffix_and_with_capital_ones_are_read(tmp_path: Path) -> None:
    for name, content in (("rows", b"a|b\n1|2\n"), ("b.TSV", b"a\tb\n1\t2\n"), ("c.CSV", b"a,b\n1,2\n")):
        (tmp_path / name).write_bytes(content)
        params = {"sep": "|"} if name == "rows" else {}
        reader = create_data_reader(str(tmp_path / name), None, params)
        assert [list(reader.read_records(shard)) for shard in reader.create_shards()] == [[["1", "2"]]]


class Locked(fsspec.implementations.memory.MemoryFileSystem):  # type: ignore[misc]
    """A store in which one folder may not be listed."""

    protocol = "locked"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    shut = "/data/b"
    find = AbstractFileSystem.find

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("locked://", "/")))

    def unstrip_protocol(self, path: str) -> str:
        return f"locked:/{path}"

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        if self._strip_protocol(path) == self.shut:
            raise PermissionError(path)
        return super().ls(path, detail, **kwargs)


fsspec.register_implementation("locked", Locked, clobber=True)


@pytest.fixture
def locked() -> Iterator[str]:
    fs = fsspec.filesystem("locked")
    for name in ("a/1.csv", "b/2.csv", "c/3.csv", "c/d/4.csv", "c/_temporary/5.csv", "c/.hidden/6.csv", "c/x.txt"):
        fs.pipe(f"/data/{name}", b"1,2\n")
    yield "locked://data"
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@pytest.mark.parametrize(
    ("tail", "found"),
    [
        ("", "a/1.csv b/2.csv c/3.csv c/d/4.csv c/x.txt"),
        ("/*/*.csv", "a/1.csv b/2.csv c/3.csv"),
        ("/**/*.csv", "a/1.csv b/2.csv c/3.csv c/d/4.csv"),
        ("/**", "a/1.csv b/2.csv c/3.csv c/d/4.csv c/x.txt"),
        ("/?/[0-9].csv", "a/1.csv b/2.csv c/3.csv"),
    ],
)
def test_a_folder_of_a_store_that_cannot_be_listed_is_an_error(
    tail: str, found: str, locked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="permission denied"):
        list(files.list_files(locked + tail))
    monkeypatch.setattr(Locked, "shut", "")
    assert list(files.list_files(locked + tail)) == [f"{locked}/{name}" for name in found.split()]


def test_a_pattern_lists_only_folders_that_it_matches(locked: str) -> None:
    assert [name[-5:] for name in files.list_files(f"{locked}/[ac]/*.csv")] == ["1.csv", "3.csv"]
    assert [name[-5:] for name in files.list_files(f"{locked}/c/d/*.csv")] == ["4.csv"]


def test_a_file_that_is_not_as_it_was_planned_is_refused_with_both_states(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,2\n3,4\n")
    planned = create_data_reader(str(path), None, {"with_header": True})
    list(planned.create_shards())
    before = planned.fingerprint(str(path))
    path.write_text("x,y\n1,2\n3,4\n5,6\n")
    fingerprints.expect({str(path): before})
    reader = create_data_reader(str(path), None, {"with_header": True})
    with pytest.raises(DataError, match=r"changed after its tasks were planned: it was 12 bytes.*, it is 16 bytes"):
        list(reader.read_records(Shard(str(path), 0, 2)))
