"""Records of a store are fetched many at once: few requests, and the same records, errors and damage."""

from __future__ import annotations

import asyncio
import io
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from elasticdl.data import DataReader, Shard, create_data_reader, recordio, tfrecord
from elasticdl.data.errors import CorruptDataError, DataError
from elasticdl.data.remote_ranges import CONNECTIONS, REQUESTS
from elasticdl_core.mixed_order import MixedReading
from elasticdl_core.shuffling import RecordOrder, cut
from elasticdl_worker.trainers.open_blocks import SKIPPED, OpenBlocks

pytestmark = pytest.mark.unit

RECORDS, TASK, SIZE = 6400, 320, 100


class Served:
    """What a store holds, and what it was asked for."""

    data: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[tuple[str, int, int]]] = []
    batches: ClassVar[list[int]] = []
    calls: ClassVar[Counter[str]] = Counter()
    broken: ClassVar[dict[int, int]] = {}
    """Bytes that cannot be read -> how often not."""
    ranged: ClassVar[bool] = True
    running: ClassVar[int] = 0
    barrier: ClassVar[threading.Barrier | None] = None

    @classmethod
    def clear(cls) -> None:
        cls.data, cls.asked, cls.batches, cls.calls, cls.broken = {}, [], [], Counter(), {}
        cls.ranged, cls.running, cls.barrier = True, 0, None

    @classmethod
    def part(cls, path: str, start: int, end: int) -> bytes:
        cls.asked.append((path, start, end))
        for at, times in cls.broken.items():
            if start <= at < end and times:
                cls.broken[at] -= 1
                raise OSError("the store is busy")
        return cls.data[path][start:end]

    @classmethod
    def about(cls, path: str) -> dict[str, Any]:
        cls.calls["info"] += 1
        if path not in cls.data:
            raise FileNotFoundError(path)
        data = cls.data[path]
        return {"name": path, "size": len(data), "type": "file", "ETag": str(hash(data))}

    @classmethod
    def all(cls, detail: bool) -> list[Any]:
        return [cls.about(name) if detail else name for name in sorted(cls.data)]


class _File(io.RawIOBase):
    def __init__(self, path: str) -> None:
        super().__init__()
        Served.calls["open"] += 1
        self.path, self.details, self.at = path, Served.about(path), 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        end = len(Served.data[self.path]) if size < 0 else self.at + size
        found = Served.part(self.path, self.at, end)
        self.at += len(found)
        return found


class Bulk(AsyncFileSystem):  # type: ignore[misc]
    """As those of S3 or HTTP: many requests at once."""

    protocol = "bulk"

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return Served.about(self._strip_protocol(path))

    async def _ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        return Served.all(detail)

    async def _cat_ranges(self, paths: list[str], starts: list[int], ends: list[int], **kwargs: Any) -> list[Any]:
        Served.batches.append(sum(ends) - sum(starts))
        return cast(list[Any], await super()._cat_ranges(paths, starts, ends, **kwargs))

    async def _cat_file(self, path: str, start: int, end: int, **kwargs: Any) -> bytes:
        assert not kwargs, "they would go to the HTTP client"
        Served.running += 1
        Served.calls["most"] = max(Served.calls["most"], Served.running)
        await asyncio.sleep(0)
        Served.running -= 1
        return Served.part(path, start, end) if Served.ranged else Served.part(path, 0, len(Served.data[path]))

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> _File:
        return _File(path)


class Single(AbstractFileSystem):  # type: ignore[misc]
    """As those of HDFS or SFTP: a connection asks one thing at a time."""

    protocol = "single"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.thread = threading.get_ident()

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return Served.about(self._strip_protocol(path))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        return Served.all(detail)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> _File:
        assert self.thread == threading.get_ident(), "it is made for one thread"
        if Served.barrier is not None:
            Served.barrier.wait(timeout=60)
        return _File(path)


fsspec.register_implementation("bulk", Bulk, clobber=True)
fsspec.register_implementation("single", Single, clobber=True)


@pytest.fixture(autouse=True)
def _cleared() -> Iterator[None]:
    Served.clear()
    yield
    Served.clear()


def written(kind: str, folder: Path, records: int = RECORDS) -> bytes:
    """A file whose records begin with their numbers."""
    path = folder / f"a.{kind}"
    if kind == "csv":
        path.write_text("".join(f"{number},{'x' * SIZE}\n" for number in range(records)))
        return path.read_bytes()
    kinds = {"tfrecord": tfrecord.TFRecordWriter, "recordio": lambda path: recordio.Writer(path, 4000, "none")}
    with kinds.get(kind, lambda path: recordio.Writer(path, 4000))(path) as writer:
        for number in range(records):
            writer.write(b"%06d" % number + b"x" * (SIZE - 6))
    return path.read_bytes()


def served(kind: str, folder: Path, store: str = "bulk", **params: Any) -> DataReader:
    """A reader of that file in a store."""
    name = f"a.{'recordio' if kind == 'snappy' else kind}"
    Served.data[name] = written(kind, folder)
    reader = create_data_reader(
        f"{store}://{name}", None, {**params, **({"with_header": False} if kind == "csv" else {})}
    )
    next(iter(reader.create_shards()))
    Served.asked.clear()
    Served.calls.clear()
    return reader


def readings(reader: DataReader, workers: int = 1) -> list[MixedReading]:
    parts = cut(reader.create_shards(), TASK)
    order = RecordOrder(1)
    order.extend(parts)
    return [cast(MixedReading, order.reading(1, at, one.start, one.end, workers)) for at, one in enumerate(parts)]


def number_of(record: Any) -> int:
    return int(record[0] if isinstance(record, list) else record[:6])


@pytest.mark.parametrize("store", ["bulk", "single"])
@pytest.mark.parametrize("kind", ["tfrecord", "csv", "recordio", "snappy"])
def test_a_task_of_a_pool_that_does_not_fit_costs_few_requests_many_at_once(
    kind: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticdl.data.remote_ranges._GAP", 0)
    reader = served(kind, tmp_path, store)
    assert not reader.reads_by_index
    chosen, blocks, (whole,) = readings(reader), OpenBlocks(reader, kept_bytes=1), Served.data.values()
    blocks.take(chosen[9], chosen[9].numbers)  # begins with one block, to see how large records are
    for one in chosen[:4]:
        Served.asked.clear()
        Served.calls.clear()
        assert list(map(number_of, blocks.take(one, one.numbers))) == list(one.numbers)
        assert len(Served.asked) <= TASK, "a request for each record at most, and one for those that lie together"
        assert sum(end - start for _, start, end in Served.asked) <= len(whole), "nothing twice"
        if store == "bulk":
            assert Served.calls["open"] <= (kind == "snappy"), "what is decompressed is kept"
            assert Served.calls["info"] <= 2, "whether the file has changed is asked once a call"
        else:
            assert Served.calls["open"] <= CONNECTIONS
    if store == "bulk" and kind in ("tfrecord", "csv"):
        assert Served.calls["most"] == REQUESTS


def test_connections_that_ask_one_thing_at_a_time_work_side_by_side(tmp_path: Path) -> None:
    reader = served("tfrecord", tmp_path, "single")
    Served.barrier = threading.Barrier(CONNECTIONS)
    name = "single://a.tfrecord"
    found = reader.read_numbers(name, list(range(0, RECORDS, 400)))
    assert list(map(number_of, found)) == list(range(0, RECORDS, 400))


def test_what_lies_together_is_one_request_and_no_more_is_read(tmp_path: Path) -> None:
    reader, size = served("tfrecord", tmp_path), SIZE + 16
    name = "bulk://a.tfrecord"
    wanted = [(3000, 3002), (10, 14), (12, 13), (3004, 3005), (3000, 3001)]
    found = reader.read_ranges([Shard(name, *one) for one in wanted])
    assert list(map(number_of, found)) == [3000, 3001, 10, 11, 12, 13, 12, 3004, 3000]
    assert [one[1:] for one in Served.asked] == [(10 * size, 14 * size), (3000 * size, 3005 * size)]


def test_records_of_many_files_are_fetched_at_once(tmp_path: Path) -> None:
    for number in range(40):
        Served.data[f"many/{number:02}.csv"] = "".join(f"{number},{row}\n" for row in range(100)).encode()
    reader = create_data_reader(",".join(f"bulk://{name}" for name in Served.data), None, {"with_header": False})
    names = [shard.name for shard in reader.create_shards()]
    reader.read_places([(names[0], [0])])
    Served.calls.clear()
    found = reader.read_places([(name, [3, 90]) for name in names])
    assert found == [[str(number), row] for number in range(40) for row in ("3", "90")]
    assert Served.calls == {"info": 40, "most": REQUESTS}


def test_not_much_is_fetched_before_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = served("tfrecord", tmp_path)
    monkeypatch.setattr("elasticdl.data.file_reader.FETCHED_BYTES", 3000)
    name, wanted = "bulk://a.tfrecord", [(at, at + 5) for at in range(0, 6000, 500)]
    found = reader.read_ranges([*(Shard(name, *one) for one in wanted), Shard(name, 6000, 6100)])
    assert list(map(number_of, found)) == [*(at for one in wanted for at in range(*one)), *range(6000, 6100)]
    assert max(Served.batches) <= 3000
    assert sum(Served.batches) == 60 * (SIZE + 16), "what is larger alone is read piece by piece"


@pytest.mark.parametrize("store", ["bulk", "single"])
def test_an_error_of_a_request_names_the_file_and_the_record(store: str, tmp_path: Path) -> None:
    reader, size = served("tfrecord", tmp_path, store), SIZE + 16
    name, numbers = f"{store}://a.tfrecord", list(range(0, RECORDS, 200))
    Served.broken = {2000 * size + 5: 1, 4000 * size: 1}
    assert list(map(number_of, reader.read_numbers(name, numbers))) == numbers, "once more, alone"
    Served.broken = {2000 * size + 5: 9, 4000 * size: 9}
    with pytest.raises(DataError, match=f"^{name}: record 2000 cannot be read: the store is busy"):
        reader.read_numbers(name, numbers)


@pytest.mark.parametrize("store", ["bulk", "single"])
def test_a_file_of_a_store_that_changes_is_refused(store: str, tmp_path: Path) -> None:
    reader = served("tfrecord", tmp_path, store)
    name = f"{store}://a.tfrecord"
    reader.read_numbers(name, [0, 6000])
    Served.data["a.tfrecord"] = Served.data["a.tfrecord"][:5000]
    with pytest.raises(DataError, match=r"was changed after it was first read: it was .*, it is "):
        reader.read_numbers(name, [0, 6000])
    Served.data.clear()
    with pytest.raises(DataError, match="no such file"):
        reader.read_numbers(name, [0, 6000])


def test_an_open_file_that_does_not_tell_its_version_is_not_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of HTTP, whose store does tell it."""
    original = _File.__init__

    def without(self: _File, path: str) -> None:
        original(self, path)
        self.details = {"name": path, "size": self.details["size"]}

    monkeypatch.setattr(_File, "__init__", without)
    reader, name = served("tfrecord", tmp_path), "bulk://a.tfrecord"
    assert list(map(number_of, reader.read_records(Shard(name, 7, 9)))) == [7, 8]
    Served.data["a.tfrecord"] = Served.data["a.tfrecord"][:-1] + b"x"
    with pytest.raises(DataError, match=r"was changed after it was first read: it was .*, it is "):
        list(reader.read_records(Shard(name, 7, 9)))


def test_a_server_that_knows_no_ranges_is_not_asked_for_the_file_again_and_again(tmp_path: Path) -> None:
    reader = served("tfrecord", tmp_path)
    Served.ranged = False
    for _ in range(2):
        assert list(map(number_of, reader.read_numbers("bulk://a.tfrecord", [7, 3000, 6000]))) == [7, 3000, 6000]
    assert sum(end - start == len(Served.data["a.tfrecord"]) for _, start, end in Served.asked) == 1


@pytest.mark.parametrize("kind", ["tfrecord", "csv", "recordio", "snappy"])
def test_damage_in_a_store_is_told_as_that_of_a_local_file(kind: str, tmp_path: Path) -> None:
    suffix = "recordio" if kind == "snappy" else kind
    whole = written(kind, tmp_path, 400)
    params = {"with_header": False} if kind == "csv" else {}
    if kind == "snappy":
        at = recordio.Index(tmp_path / "a.snappy").chunks[3].offset + 60
    else:
        at = whole.index(b"\n150," if kind == "csv" else b"000150") + 8
    damaged = whole[:at] + b"\xff\xfe" + whole[at + 2 :]
    (tmp_path / f"a.{suffix}").write_bytes(damaged)
    Served.data[f"a.{suffix}"] = damaged
    wanted = [3, 150, 390]
    told = []
    for name in (str(tmp_path / f"a.{suffix}"), f"bulk://a.{suffix}"):
        reader = create_data_reader(name, None, params)
        with pytest.raises(CorruptDataError) as caught:
            reader.read_ranges([Shard(name, one, one + 1) for one in wanted])
        told.append(caught.value.message.removeprefix(name))
    assert told[0] == told[1]
    reader = create_data_reader(f"bulk://a.{suffix}", None, {**params, "on_corrupt": "skip"})
    assert len(reader.read_numbers(f"bulk://a.{suffix}", wanted)) == 2
    assert reader.skipped_records == 1


def test_a_record_that_is_passed_over_does_not_make_all_others_be_read_alone(tmp_path: Path) -> None:
    reader = served("tfrecord", tmp_path, on_corrupt="skip")
    size, one = SIZE + 16, readings(reader)[0]
    whole, at = Served.data["a.tfrecord"], one.numbers[70] * size + 40
    Served.data["a.tfrecord"] = whole[:at] + b"\xff\xfe" + whole[at + 2 :]
    reader = create_data_reader("bulk://a.tfrecord", None, {"on_corrupt": "skip"})
    blocks = OpenBlocks(reader, kept_bytes=1)
    blocks.take(readings(reader)[1], readings(reader)[1].numbers)
    Served.calls.clear()
    found = blocks.take(one, one.numbers)
    assert [number for number, record in zip(one.numbers, found, strict=True) if record is SKIPPED] == [
        one.numbers[70]
    ]
    assert [number_of(record) for record in found if record is not SKIPPED] == [
        number for number in one.numbers if number != one.numbers[70]
    ]
    assert Served.calls["info"] < 40, "it is looked for by halves"
