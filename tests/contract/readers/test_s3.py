"""Data in S3, on moto's server and on s3rver: exact though answers fail or end early; compared by entity tags."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("s3fs", reason="needs the extra s3-dev")
pytest.importorskip("moto", reason="needs the extra s3-dev")

import s3fs

from elasticdl.data import DataReader, Shard, create_data_reader, fingerprints, recordio
from elasticdl.data.errors import DataError
from elasticdl.data.inspection import inspect_data
from elasticdl_core.backoff import Backoff
from elasticdl_core.job import JobSpec
from elasticdl_core.shuffling import RecordOrder, joined_parts
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.shuffled import ShuffledRecords
from tests.fakes.s3_server import FaultyS3, serving_s3, serving_s3rver

pytestmark = [pytest.mark.contract, pytest.mark.timeout(300)]
ROWS = 300
KINDS = ("parquet", "csv", "recordio", "images")


@pytest.fixture(scope="module", params=["moto", pytest.param("s3rver", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyS3]:
    moto = request.param == "moto"
    serving = serving_s3("data") if moto else serving_s3rver("data", tmp_path_factory.mktemp("s3rver"))
    with pytest.MonkeyPatch.context() as patch, serving as application:
        patch.setattr("elasticdl.data.steady._PAUSES", Backoff(first_s=0.001, longest_s=0.01))
        yield application


@pytest.fixture(params=KINDS)
def made(request: pytest.FixtureRequest, server: FaultyS3, tmp_path: Path) -> Iterator[str]:
    """Three files, or images, whose records are numbered."""
    kind, numbers = request.param, range(ROWS)
    for part, some in enumerate((numbers[:100], numbers[100:101], numbers[101:])):
        path = tmp_path / f"{part}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.table({"id": list(some), "text": [f"row {one}" for one in some]}), path, 16)
        elif kind == "csv":
            path.write_text("id,text\n" + "".join(f"{one},row {one}\n" for one in some))
        elif kind == "recordio":
            with recordio.Writer(path, 200) as writer:
                for one in some:
                    writer.write(b"%d" % one)
        else:
            for one in some:
                (tmp_path / "ab"[one > 200]).mkdir(exist_ok=True)
                (tmp_path / "ab"[one > 200] / f"{one:03d}.png").write_bytes(b"%d" % one)
    store = s3fs.S3FileSystem()
    store.put(f"{tmp_path}/", f"data/{kind}/", recursive=True)
    yield f"s3://data/{kind}/"
    for name in store.find(f"data/{kind}"):  # s3rver stumbles over several at once
        store.rm_file(name)


def opened(origin: str) -> DataReader:
    return create_data_reader(origin, None, {"with_header": True} if origin.endswith("csv/") else {})


def numbers_of(records: Iterable[Any]) -> list[int]:
    found = []
    for one in records:
        value = one[0] if isinstance(one, list) else one
        found.append(int(value.get("id", value.get("image")) if isinstance(value, dict) else value))
    return found


@pytest.fixture
def spoilt(server: FaultyS3) -> Iterator[FaultyS3]:
    with server.spoiling(0.1):
        yield server


def test_nothing_is_lost_though_answers_fail_or_end_early(made: str, server: FaultyS3, spoilt: FaultyS3) -> None:
    reader = opened(made)
    shards = list(reader.create_shards())
    found = [number for shard in shards for number in numbers_of(reader.read_records(shard))]
    assert found == list(range(ROWS))
    parts = joined_parts(shards, 64)
    order = RecordOrder(7, 0, grain=reader.grain)
    order.extend(parts, shards)
    records, seen = ShuffledRecords(opened(made)), list[int]()
    for index, part in enumerate(parts):
        reading = order.reading(0, index, part.start, part.end)
        seen += numbers_of(itertools.chain.from_iterable(records.read_batches(part, reading, 16)))
    assert sorted(seen) == list(range(ROWS))
    assert seen != sorted(seen)
    assert spoilt.faults


def test_an_object_that_is_written_anew_is_an_error_with_both_states(made: str, server: FaultyS3) -> None:
    reader = opened(made)
    shard = next(iter(reader.create_shards()))
    before = reader.fingerprint(shard.name)
    store = s3fs.S3FileSystem()
    path = "data/images/a/000.png" if "images" in made else shard.name.removeprefix("s3://")
    data = store.cat_file(path)
    store.pipe_file(path, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("elasticdl.data.fingerprints._planned", {})
        fingerprints.expect({shard.name: before})
        with pytest.raises(DataError, match="changed after its tasks were planned") as error:
            list(opened(made).read_records(Shard(shard.name, 0, 1)))
        assert before in error.value.message


def test_what_is_not_there_is_told(server: FaultyS3) -> None:
    for origin, words in (("s3://data/none/", "no such file"), ("s3://other/a.csv", "no such file|bucket")):
        with pytest.raises(DataError, match=words):
            inspect_data(origin)


MODULE = """
import tensorflow as tf
def forward():
    x = tf.keras.Input((1,))
    return tf.keras.Model(x, tf.keras.layers.Dense(1)(x))
def loss(labels, predictions):
    return tf.reduce_mean(tf.square(tf.cast(tf.reshape(labels, [-1, 1]), tf.float32) - predictions))
def optimizer():
    return tf.keras.optimizers.SGD(1e-6)
"""


@pytest.mark.slow
def test_a_job_trains_on_a_prefix(server: FaultyS3, spoilt: FaultyS3, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODULE)
    spoilt.share = 0.0
    pq.write_table(pa.table({"x": list(range(64)), "y": list(range(64))}), tmp_path / "t.parquet", 16)
    s3fs.S3FileSystem().put_file(str(tmp_path / "t.parquet"), "data/job/t.parquet")
    spoilt.share = 0.1
    spec = {
        "model_def": "m.forward", "model_zoo": str(tmp_path), "training_data": "s3://data/job/",
        "data_reader_params": {"label": "y"}, "export_formats": "", "minibatch_size": 8, "num_epochs": 2,
    }  # fmt: skip
    events: list[dict[str, Any]] = []
    run_local(JobSpec.from_mapping(spec), tmp_path / "out", events.append)
    assert events[-1]["records"] == 128
