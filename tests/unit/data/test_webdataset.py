"""WebDataset archives: samples and their types, archives as they lie around, and damage, never passed over."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from elasticdl.data import create_data_reader, files, tar_samples
from elasticdl.data.convert import convert
from elasticdl.data.errors import DataError
from elasticdl.data.factory import columns_of, with_columns
from elasticdl.data.inspection import inspect_data

pytestmark = pytest.mark.unit

Member = tuple[str, bytes] | tarfile.TarInfo


def archive(*members: Member, format: int = tarfile.USTAR_FORMAT) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w", format=format) as file:
        for member in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member[0])
            data = b"" if isinstance(member, tarfile.TarInfo) else member[1]
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return found.getvalue()


def special(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "elsewhere"
    return info


def samples(count: int, **more: bytes) -> list[Member]:
    return [
        (f"a/{one:03d}.{ending}", data)
        for one in range(count)
        for ending, data in ({"jpg": b"\xff%d" % one, "cls": b"%d\n" % one} | more).items()
    ]


def rows(path: Path, step: int | None = None, **params: Any) -> list[dict[str, Any]]:
    reader = create_data_reader(str(path), step, params)
    return [record for shard in reader.create_shards() for record in reader.read_records(shard)]


def test_a_record_has_the_key_and_the_files_of_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    more = {"JSON": b'{"x": 1}', "seg.png": b"", "txt": "\u00e4".encode()}
    path.write_bytes(archive(special("a", tarfile.DIRTYPE), *samples(3, **more)))
    found = rows(path, 2)
    assert [row["__key__"] for row in found] == ["a/000", "a/001", "a/002"]
    assert found[2] == {
        "__key__": "a/002", "jpg": b"\xff2", "cls": 2, "json": '{"x": 1}', "seg.png": b"", "txt": "\u00e4"
    }  # fmt: skip
    report = inspect_data(str(path), verify=True)
    assert (report.kind, report.records, report.verified, report.bytes) == ("webdataset", 3, 3, path.stat().st_size)
    assert report.columns["cls"] == "int64"
    assert rows(path, columns=["cls", "__key__"])[1] == {"cls": 1, "__key__": "a/001"}
    reader = create_data_reader(str(path))
    assert [one["cls"] for one in reader.read_numbers(str(path), [0, 2])] == [0, 2]
    done = convert(str(path), tmp_path / "a.parquet", "parquet")
    assert done.records == 3
    assert [row["jpg"] for row in rows(tmp_path / "a.parquet")] == [b"\xff0", b"\xff1", b"\xff2"]


LONG = "x" * 120 + "/" + "y" * 150


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_each_format_are_read(format: int, tmp_path: Path) -> None:
    name = LONG if format != tarfile.USTAR_FORMAT else "plain"
    members: list[Member] = [(f"{name}{size}.bin", b"z" * size) for size in (0, 511, 512, 513)]
    (tmp_path / "a.tar").write_bytes(archive(*members, format=format))
    assert [len(row["bin"]) for row in rows(tmp_path / "a.tar")] == [0, 511, 512, 513]
    reader = create_data_reader(str(tmp_path / "a.tar"))
    (found,) = reader.read_numbers(str(tmp_path / "a.tar"), [2])
    assert (found["__key__"], len(found["bin"])) == (f"{name}512", 512)


AB = samples(2)
REFUSED: Mapping[str, tuple[bytes, dict[str, Any], str]] = {
    "no file": (archive(), {}, "the files hold no record"),
    "folders alone": (archive(special("a", tarfile.DIRTYPE)), {}, "the files hold no record"),
    "no ending": (archive(*AB, ("README", b"x")), {}, "README has no ending"),
    "a link": (archive(*AB, special("a/003.jpg", tarfile.SYMTYPE)), {}, r"003\.jpg is a link or a device"),
    "a file of two names": (archive(*AB, special("a/003.jpg", tarfile.LNKTYPE)), {}, "does not have its bytes"),
    "a pipe": (archive(*AB, special("a/003.jpg", tarfile.FIFOTYPE)), {}, "is a link or a device"),
    "files of samples mixed": (archive(AB[0], AB[2], AB[1]), {}, r"byte 2048: a/000\.cls: other files of the sample"),
    "an ending twice": (archive(AB[0], AB[0]), {}, r"the sample 'a/000' has two files \.jpg"),
    "endings that differ by capitals": (archive(AB[0], ("a/000.JPG", b"")), {}, r"two files \.jpg"),
    "a file that a sample lacks": (archive(*AB[:3]), {}, r"record 1: sample 'a/001' has no file \.cls; it has \.jpg"),
    "a class of text": (archive(("0.cls", b"cat")), {}, r"record 0: sample '0': \.cls holds 'cat'"),
    "a class of 19 digits": (archive(("0.cls", b"9" * 19)), {}, "which is no whole number"),
    "a class of other digits": (archive(("0.cls", "\uff11".encode())), {}, "which is no whole number"),
    "text of latin-1": (archive(("0.txt", b"\xe4")), {}, r"sample '0': \.txt is not UTF-8"),
    "no such ending": (archive(*AB), {"columns": ["png"]}, "there is no column 'png'"),
    "a null of another type": (archive(*AB), {"nulls": {"cls": "x"}}, "nulls: column 'cls' is int64, and 'x' is not"),
    "a null of no ending": (archive(*AB), {"nulls": {"png": 1}}, "there is no column 'png'"),
    "skipping damage": (archive(*AB), {"on_corrupt": "skip"}, "on_corrupt=skip is not possible"),
    "windows": (archive(*AB), {"window": 2}, "window= does not go with webdataset"),
    "another parameter": (archive(*AB), {"label": "cls"}, "the webdataset reader has no parameter 'label'"),
    "cut behind a sample": (archive(*AB)[:2048], {}, "byte 2048: the archive ends here without its end mark"),
    "cut in a header": (archive(*AB)[:2148], {}, "byte 2048: the archive ends here"),
    "cut in a file": (archive(*AB)[: 2048 + 513], {}, "is no tar archive from here on: unexpected end of data"),
    "a damaged header": (archive(*AB)[:2048] + b"\xff" + archive(*AB)[2049:], {}, "byte 2048: the header of a file"),
    "zeros in the place of a header": (archive(*AB)[:2048] + bytes(512) + archive(*AB)[2560:], {}, "after its end"),
    "two that were joined": (archive(*AB) + archive(("b.jpg", b"")), {}, "goes on after its end"),
    "text": (b"no archive", {}, "is no tar archive"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_samples_is_refused_with_its_place(name: str, tmp_path: Path) -> None:
    data, params, words = REFUSED[name]
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    for read in (
        lambda: rows(path, 1, **params),
        lambda: inspect_data(str(path), reader_params=params, verify=True),
        lambda: convert(str(path), tmp_path / "b.parquet", "parquet", reader_params=params),
    ):
        with pytest.raises(DataError, match=words) as error:
            read()
        assert error.value.fix


def test_no_byte_that_is_changed_changes_a_record_without_a_word(tmp_path: Path) -> None:
    """Of headers alone: what files hold has no checksum."""
    whole, path = archive(*AB), tmp_path / "a.tar"
    path.write_bytes(whole)
    before = rows(path)
    for at in (*range(0, 512, 7), *range(2048, 2560, 7)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DataError):
            rows(path)
    path.write_bytes(whole)
    assert rows(path) == before


def test_missing_files_become_what_nulls_say(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(archive(("0.cls", b"1"), ("0.txt", b"x"), ("0.bin", b"y"), ("1.other", b"z")))
    empty = {"__key__": "1", "cls": 0, "txt": "", "bin": b""}
    assert rows(path, nulls="default")[1] == empty
    assert rows(path, nulls={"cls": -1, "txt": "?", "bin": "default"})[1] == empty | {"cls": -1, "txt": "?"}


def test_data_to_predict_need_not_have_the_class(tmp_path: Path) -> None:
    (tmp_path / "train.tar").write_bytes(archive(*AB))
    (tmp_path / "new.tar").write_bytes(archive(("1.jpg", b"x")))
    trained = columns_of(create_data_reader(str(tmp_path / "train.tar")))
    assert trained == ["__key__", "jpg", "cls"]
    reader = create_data_reader(str(tmp_path / "new.tar"), None, with_columns({}, trained), predicting=True)
    (shard,) = reader.create_shards()
    assert list(reader.read_records(shard)) == [{"__key__": "1", "jpg": b"x"}]
    with pytest.raises(DataError, match="there is no column 'cls'"):
        create_data_reader(str(tmp_path / "new.tar"), None, with_columns({}, trained))


def test_names_about_the_archive_and_hidden_ones_are_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(archive(("__about__", b"{}"), ("._a.cls", b"mac"), ("d/.x.cls", b""), ("a.cls", b"3")))
    assert rows(path) == [{"__key__": "a", "cls": 3}]


def test_the_index_of_a_long_archive_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(archive(*samples(3, bin=bytes(2 << 20))))
    cache = str(tmp_path / "cache")
    assert [row["cls"] for row in rows(path, index_cache=cache)] == [0, 1, 2]
    monkeypatch.setattr(tar_samples, "build_index", None)
    assert [row["cls"] for row in rows(path, index_cache=cache)] == [0, 1, 2]


def test_archives_in_stores_are_read_by_ranges(tmp_path: Path) -> None:
    import fsspec

    with fsspec.open("memory://webdataset/a.tar", "wb") as file:
        file.write(archive(*samples(20)))
    reader = create_data_reader("memory://webdataset/")
    (shard,) = reader.create_shards()
    assert [row["cls"] for row in reader.read_places([(shard.name, [3, 7, 19])])] == [3, 7, 19]
    assert files.is_remote(shard.name)
