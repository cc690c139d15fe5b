from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from elasticdl.data import CustomDataReader, Metadata, RecordSpec, create_data_reader
from elasticdl.data.errors import DataError
from elasticdl.data.recordio import Writer
from elasticdl_core.shard import Shard

pytestmark = pytest.mark.unit


class Numbers:
    """A reader in the style of users: numbers of two 'tables'."""

    def __init__(self, shards: Any) -> None:
        self.shards = shards

    def create_shards(self) -> Any:
        return self.shards

    def read_records(self, task: Any) -> Iterator[str]:
        assert task.name == task.shard_name == task.shard.name
        assert (task.shard.start, task.shard.end) == (task.start, task.end)
        for number in range(task.start, task.end):
            yield f"{task.name}{number}"


@pytest.mark.parametrize(
    "shards",
    [
        {"a": (0, 10), "b": (5, 2)},
        [Shard("a", 0, 10), Shard("b", 5, 7)],
        iter([("a", 0, 10), Shard("b", 5, 7)]),
        [("a", 0, 10), ("b", 5, 2)],  # (name, start, count), as it shows at the second
    ],
)
def test_shards_come_in_several_forms(shards: Any) -> None:
    reader = CustomDataReader(Numbers(shards))
    found = list(reader.create_shards())
    assert found == [Shard("a", 0, 10), Shard("b", 5, 7)]
    assert list(reader.read_records(found[1])) == ["b5", "b6"]
    assert list(reader.read_batches(found[0], 4)) == [
        ["a0", "a1", "a2", "a3"], ["a4", "a5", "a6", "a7"], ["a8", "a9"],
    ]  # fmt: skip


def test_tuples_of_the_original_base_class_hold_counts() -> None:
    """They were read as ends where the count was above the start: 100 of 200 records of "u" were lost."""
    from elasticdl.python.data.reader.data_reader import AbstractDataReader

    class Table(AbstractDataReader):
        def create_shards(self) -> list[tuple[str, int, int]]:
            return [("t", 0, 100), ("u", 100, 200)]

        def read_records(self, task: Any) -> Iterator[int]:
            return iter(range(task.start, task.end))

    reader = CustomDataReader(Table())
    assert list(reader.create_shards()) == [Shard("t", 0, 100), Shard("u", 100, 300)]


def test_tuples_that_can_be_read_both_ways_are_refused_with_both() -> None:
    with pytest.raises(DataError) as caught:
        list(CustomDataReader(Numbers([("a", 0, 10), ("b", 5, 7)])).create_shards())
    assert "the records 5 to 7 (name, start, end) or 5 to 12 (name, start, count)" in caught.value.message
    assert "Shard(name, start, end)" in caught.value.fix
    assert "AbstractDataReader" in caught.value.fix


def test_tuples_are_ends_where_counts_would_name_records_twice() -> None:
    reader = CustomDataReader(Numbers([("t", 0, 100), ("t", 100, 200), ("t", 200, 300)]))
    assert [(s.start, s.end) for s in reader.create_shards()] == [(0, 100), (100, 200), (200, 300)]


def test_equal_counts_of_one_table_are_recognised() -> None:
    reader = CustomDataReader(Numbers([("t", 0, 100), ("t", 100, 100), ("t", 200, 50)]))
    assert [(s.start, s.end) for s in reader.create_shards()] == [(0, 100), (100, 200), (200, 250)]


@pytest.mark.parametrize(
    "shards",
    [
        None,
        "abc",
        [("a", 0)],
        {"a": 5},
        {"a": (0, 0)},
        {"a": (-1, 5)},
        [("a", 3, 9), ("a", 9, 9)],
        [(1, 0, 5)],
        [("a", 0, 2.5)],
    ],
)
def test_other_shards_are_refused(shards: Any) -> None:
    with pytest.raises(DataError) as caught:
        list(CustomDataReader(Numbers(shards)).create_shards())
    assert "(name, start, end)" in caught.value.fix


def test_no_shards_and_missing_methods_are_refused() -> None:
    with pytest.raises(DataError, match="lists no shards"):
        list(CustomDataReader(Numbers([])).create_shards())
    with pytest.raises(DataError, match="object has no method create_shards and no read_records"):
        CustomDataReader(object())


def test_metadata_and_types_are_passed_on() -> None:
    class Rich(Numbers):
        metadata = MappingProxyType({"column_names": ["x"]})
        records_output_types = "tf.string"

    reader = CustomDataReader(Rich([("a", 0, 1)]))
    assert reader.metadata == Metadata(["x"])
    assert reader.records_kind == RecordSpec("python", output_types="tf.string")
    assert CustomDataReader(Numbers([])).metadata.column_names == []
    assert CustomDataReader(Numbers([])).records_kind == RecordSpec("python")


def test_the_module_function_gets_origin_and_parameters() -> None:
    def custom_data_reader(data_origin: str, records_per_task: int | None = None, **params: Any) -> Numbers:
        return Numbers([(data_origin, 0, records_per_task)] if params == {"table": "t"} else None)

    reader = create_data_reader("where", 7, "table=t", custom=custom_data_reader)
    assert list(reader.create_shards()) == [Shard("where", 0, 7)]
    with pytest.raises(DataError, match="returned None"):
        create_data_reader("where", custom=lambda origin, records_per_task=None: None)


def test_a_reader_object_is_taken_as_it_is() -> None:
    reader = create_data_reader("x", custom=Numbers([("a", 0, 1)]))
    assert list(reader.create_shards()) == [Shard("a", 0, 1)]


def test_a_module_of_the_original_works(tmp_path: Path) -> None:
    from elasticdl.python.data.reader.data_reader import AbstractDataReader
    from elasticdl.python.data.reader.recordio_reader import RecordIODataReader

    with Writer(tmp_path / "a") as writer:
        writer.write(b"one")

    class CustomDataReader(RecordIODataReader):
        def __init__(self, **kwargs: Any) -> None:
            RecordIODataReader.__init__(self, **kwargs)

    class FromAbstract(AbstractDataReader):
        def __init__(self, **kwargs: Any) -> None:
            AbstractDataReader.__init__(self, **kwargs)

        def create_shards(self) -> dict[str, tuple[int, int]]:
            return {"t": (0, 2)}

        def read_records(self, task: Any) -> Iterator[int]:
            yield from range(task.start, task.end)

    derived = create_data_reader(
        str(tmp_path), custom=lambda data_origin, records_per_task=None: CustomDataReader(data_dir=data_origin)
    )
    (shard,) = derived.create_shards()
    assert list(derived.read_records(shard)) == [b"one"]
    wrapped = create_data_reader("x", custom=lambda data_origin, records_per_task=None: FromAbstract(a=1))
    (shard,) = wrapped.create_shards()
    assert list(wrapped.read_records(shard)) == [0, 1]
