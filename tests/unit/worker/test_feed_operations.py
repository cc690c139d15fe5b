"""``feed`` gives each record that it was given, or is refused by name: every operation of ``tf.data`` is decided."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from elasticdl.data import Shard, create_data_reader
from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_core.skips import SkipReason
from elasticdl_worker.trainers.tensorflow.input.operations import OPERATIONS
from elasticdl_worker.trainers.tensorflow.input.pipeline import InputPipeline
from elasticdl_worker.user_code import ModelModule

pytestmark = pytest.mark.unit

ABSTRACT = {"DatasetV2", "DatasetV1", "Dataset", "DatasetSource", "UnaryDataset", "UnaryUnchangedStructureDataset"}
D, X = tf.data.Dataset, tf.data.experimental
MINE = [1.0, 2.0, 3.0]


def parse(columns: Any) -> Any:
    return tf.strings.to_number(columns[1]), tf.strings.to_number(columns[0])


def by_keras(dataset: Any) -> Any:
    noise = tf.keras.layers.GaussianNoise(0.1)
    return dataset.map(parse).map(lambda x, y: (noise(x, training=True), y))


def counted(dataset: Any) -> Any:
    seen = tf.Variable(0.0)
    return dataset.map(lambda columns: (seen.assign_add(1.0), parse(columns)[1]))


GIVEN: dict[str, Callable[[Any], Any]] = {
    "apply": lambda d: d.apply(lambda e: e.map(parse)),
    "batch": lambda d: d.batch(50).map(lambda c: (tf.strings.to_number(c[:, 1]), c[:, 0])).unbatch(),
    "cache": lambda d: d.cache().map(parse),
    "cache at the end": lambda d: d.map(parse).cache(),
    "cache in a file": lambda d: d.map(parse).cache("/nowhere/at/all"),
    "filter": lambda d: d.map(parse).filter(lambda x, y: x == x),
    "flat_map": lambda d: d.flat_map(lambda c: D.from_tensors(parse(c))),
    "flat_map to cached": lambda d: d.flat_map(lambda c: D.from_tensors(parse(c)).cache()),
    "ignore_errors": lambda d: d.map(parse).ignore_errors(),
    "interleave": lambda d: d.interleave(lambda c: D.from_tensors(parse(c)), cycle_length=3),
    "parallel interleave": lambda d: d.interleave(lambda c: D.from_tensors(parse(c)), num_parallel_calls=2),
    "experimental.parallel_interleave": lambda d: d.apply(
        X.parallel_interleave(lambda c: D.from_tensors(parse(c)), cycle_length=2)
    ),
    "map": lambda d: d.map(parse),
    "map in parallel": lambda d: d.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False),
    "map with a layer of Keras that draws": by_keras,
    "experimental.map_and_batch": lambda d: d.apply(X.map_and_batch(parse, 10)).unbatch(),
    "padded_batch": lambda d: d.map(parse).padded_batch(10).unbatch(),
    "prefetch": lambda d: d.map(parse).prefetch(tf.data.AUTOTUNE),
    "ragged_batch": lambda d: d.map(parse).ragged_batch(10).unbatch(),
    "sparse_batch": lambda d: (
        d.map(lambda c: tf.stack(parse(c)))
        .sparse_batch(10, [2])
        .unbatch()
        .map(lambda s: (tf.sparse.to_dense(s), 1.0))
    ),
    "rebatch": lambda d: d.map(parse).batch(10).rebatch(7).unbatch(),
    "repeat once": lambda d: d.map(parse).repeat(1),
    "shuffle": lambda d: d.map(parse).shuffle(20),
    "unbatch": lambda d: d.map(lambda c: (parse(c)[0][None], c[:1])).unbatch(),
    "with_options": lambda d: d.map(parse).with_options(tf.data.Options()),
    "zip of both": lambda d: D.zip((d.map(lambda c: parse(c)[0]), d.map(lambda c: parse(c)[1]))),
}
TWICE = {"concatenate": lambda d: d.map(parse).concatenate(d.map(parse))}
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "as_numpy_iterator": (lambda d: D.from_tensor_slices(list(d.as_numpy_iterator())), "reads its records itself"),
    "batch": (lambda d: d.map(parse).batch(8), "minibatches of its own.*leave .batch.. out"),
    "batch and flat_map": (
        lambda d: d.map(parse).batch(3).flat_map(lambda x, y: D.from_tensors((x[-1] - x[0], y[-1]))),
        "batch with flat_map, which makes one element of several records.*window=N;stride=1;group_by=COLUMN",
    ),
    "batch and interleave": (
        lambda d: d.map(parse).batch(3).interleave(lambda x, y: D.from_tensors((x[-1], y[-1]))),
        "batch with interleave",
    ),
    "batch that drops": (lambda d: d.batch(8, drop_remainder=True).unbatch().map(parse), "drop_remainder"),
    "map_and_batch that drops": (
        lambda d: d.apply(X.map_and_batch(parse, 8, drop_remainder=True)).unbatch(),
        "drop_remainder",
    ),
    "padded_batch": (lambda d: d.map(parse).padded_batch(8), "minibatches of its own"),
    "unbatch and batch": (lambda d: d.map(lambda c: (c[:1], c[:1])).unbatch().batch(4), "minibatches of its own"),
    "bucket_by_sequence_length": (
        lambda d: d.map(parse).bucket_by_sequence_length(lambda x, y: 1, [2], [4, 4]),
        "group_by_window",
    ),
    "cache made by hand": (lambda d: cached_by_hand(d.map(parse)), "keeps records by cache.*passed over"),
    "choose_from_datasets": (
        lambda d: D.choose_from_datasets([d.map(parse), d.map(parse)], D.range(2)),
        "choose_from_datasets",
    ),
    "concatenate": (lambda d: d.map(parse).concatenate(D.from_tensors((1.0, 1.0))), "from_tensors"),
    "counter": (lambda d: D.counter().map(lambda i: (i, i)), "scan"),
    "enumerate": (lambda d: d.enumerate().map(lambda i, c: (i, parse(c)[1])), "enumerate.*one task at a time"),
    "flat_map without end": (
        lambda d: d.flat_map(lambda c: D.from_tensors(parse(c)).repeat()),
        "without end.*flat_map a count",
    ),
    "from_generator": (
        lambda d: D.from_generator(lambda: iter(MINE), output_signature=tf.TensorSpec([])).map(lambda x: (x, x)),
        "generator instead of the records.*--training_data",
    ),
    "from_tensor_slices": (lambda d: D.from_tensor_slices((MINE, MINE)), "from_tensor_slices"),
    "from_tensors": (lambda d: D.from_tensors((MINE, MINE)), "from_tensors"),
    "experimental.from_list": (lambda d: X.from_list([(1.0, 1.0)]), "from_list"),
    "from_variant": (lambda d: X.from_variant(X.to_variant(d), d.element_spec).map(parse), "from_variant"),
    "get_single_element": (
        lambda d: [d.batch(4).take(1).get_single_element(), d.map(parse)][1],
        "reads its records itself",
    ),
    "group_by_window": (
        lambda d: d.map(parse).group_by_window(lambda x, y: tf.int64.max, lambda k, w: w.batch(2), 2),
        "group_by_window",
    ),
    "experimental.group_by_reducer": (lambda d: reduced(d), "group_by_reducer"),
    "list_files": (lambda d: D.list_files(__file__).map(lambda n: (n, n)), "instead of the records"),
    "random": (lambda d: D.random().take(3).map(lambda n: (n, n)), "take"),
    "range": (lambda d: D.range(9).map(lambda n: (n, n)), "counter"),
    "reduce": (lambda d: d.map(parse) if d.reduce(0, lambda n, c: n + 1) else d, "reads its records itself"),
    "rejection_resample": (
        lambda d: d.map(parse).rejection_resample(lambda x, y: tf.cast(y, tf.int32), [0.5, 0.5]).map(lambda c, e: e),
        "rejection_resample",
    ),
    "repeat": (lambda d: d.map(parse).repeat().filter(lambda x, y: x == x), "without end.*remove .repeat"),
    "repeat twice": (lambda d: d.map(parse).repeat(2), "repeats the records.*--num_epochs"),
    "sample_from_datasets": (
        lambda d: D.sample_from_datasets([d.map(parse), d.map(parse)], [0.5, 0.5]),
        "sample_from_datasets",
    ),
    "save and load": (lambda d: saved(d), "reads its records itself|saved dataset"),
    "scan": (lambda d: d.map(parse).scan(0.0, lambda s, e: (s + e[0], e)), "scan.*record to record"),
    "shard": (lambda d: d.shard(2, 0).map(parse), "shard"),
    "experimental.shuffle_and_repeat": (
        lambda d: d.map(parse).apply(X.shuffle_and_repeat(9, 2)),
        "repeats the records",
    ),
    "skip": (lambda d: d.skip(1).map(parse), "uses skip, which counts records.*one task at a time"),
    "snapshot": (lambda d: d.map(parse).snapshot("/nowhere/at/all"), "snapshot"),
    "take": (lambda d: d.map(parse).take(100), "uses take, which counts records.*one task at a time"),
    "take_while": (lambda d: d.map(parse).take_while(lambda x, y: x == x), "take_while"),
    "unique": (lambda d: d.map(lambda c: c[0]).unique().map(lambda c: (c, c)), "unique"),
    "window": (lambda d: d.map(parse).window(3).flat_map(lambda x, y: D.zip((x, y))), "window"),
    "zip": (
        lambda d: D.zip((d.map(parse), D.counter())).map(lambda e, n: e),
        "zip .as enumerate does. with what does not come from the records",
    ),
    "zip with what is shuffled": (lambda d: D.zip((d.shuffle(9).map(parse), d)).map(lambda e, c: e), "zip"),
    "TextLineDataset": (lambda d: tf.data.TextLineDataset(__file__).map(lambda n: (n, n)), "TextLineDataset"),
    "TFRecordDataset": (lambda d: tf.data.TFRecordDataset(__file__).map(lambda n: (n, n)), "TFRecordDataset"),
    "experimental.CsvDataset": (lambda d: X.CsvDataset(__file__, [0.0, 0.0]), "CsvDataset"),
    "experimental.assert_cardinality": (lambda d: d.map(parse).apply(X.assert_cardinality(200)), "how many records"),
    "a variable that counts": (counted, "changes a variable for each record"),
}
OTHER_METHODS = {"cardinality", "element_spec", "fingerprint", "load", "options", "save"}


def cached_by_hand(dataset: Any) -> Any:
    from tensorflow.python.data.ops.cache_op import CacheDataset

    return CacheDataset(dataset, "")


def reduced(dataset: Any) -> Any:
    counting = X.Reducer(lambda _: 0.0, lambda state, *e: state + tf.nest.flatten(e)[0], lambda state: (state, state))
    return dataset.map(parse).apply(X.group_by_reducer(lambda x, y: tf.constant(0, tf.int64), counting))


def saved(dataset: Any) -> Any:
    dataset.map(parse).save("/nowhere/at/all")
    return D.load("/nowhere/at/all")


def pipeline_of(clicks: Path, change: Callable[[Any], Any], mode: str = "training") -> InputPipeline:
    module = ModelModule(clicks, (clicks.parent,), lambda: None, feed=lambda d, mode, meta: change(d))
    return InputPipeline(create_data_reader(str(clicks)), module, mode, 32)


@pytest.mark.parametrize("name", list(GIVEN | TWICE))
def test_each_record_of_a_task_is_given(clicks: Path, name: str) -> None:
    pipeline = pipeline_of(clicks, (GIVEN | TWICE)[name])
    for start, end, seeded in ((0, 100, False), (100, 130, False), (130, 140, True)):
        shard = Shard(str(clicks), start, end)
        batches = pipeline.seeded_minibatches(shard, None, 5) if seeded else pipeline.minibatches(shard)
        given = [float(value) for batch in batches for value in batch.labels]
        wanted = sorted(labels_of(clicks)[start:end] * (2 if name in TWICE else 1))
        if name != "sparse_batch":
            assert sorted(given) == wanted
        assert pipeline.intake.fed == len(wanted)
        assert not pipeline.intake.skips


@pytest.mark.parametrize(
    "between",
    [
        lambda x, y: (x - tf.reduce_mean(x), y),
        lambda x, y: (x[1:] - x[:-1], y[1:]),
        lambda x, y: (x, tf.roll(y, 1, 0)),
    ],
    ids=["a mean", "pairs", "the row before"],
)
def test_what_combines_the_records_of_a_batch_is_refused_by_its_first_rows(clicks: Path, between: Any) -> None:
    pipeline = pipeline_of(clicks, lambda d: d.map(parse).batch(3).map(between).unbatch())
    for records in (2, 100, 100):  # each time: a task that failed is tried again
        with pytest.raises(UserCodeError, match="rows of several records together"):
            list(pipeline.minibatches(Shard(str(clicks), 0, records)))


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_means_another_thing_for_a_task_is_refused_by_name(clicks: Path, name: str) -> None:
    change, said = REFUSED[name]
    with pytest.raises(UserCodeError) as caught:
        pipeline_of(
            clicks, change, "evaluation" if name == "skip" else "prediction" if name == "take" else "training"
        )
    shown = f"{caught.value.message} {caught.value.fix}"
    assert matches(said, shown), shown


def test_every_operation_of_tensorflow_is_decided() -> None:
    assert kinds_of_dataset() - ABSTRACT <= set(OPERATIONS), "a new operation: decide what feed may do with it"
    public = {name for name in dir(D) if not name.startswith("_") and name != "name_scope"}
    tried = {name.split()[0].removeprefix("experimental.") for name in GIVEN | TWICE | REFUSED}
    assert public - tried <= OTHER_METHODS, "a new method: give an example of it"


def test_what_a_filter_leaves_out_is_counted_as_passed_over(clicks: Path) -> None:
    pipeline = pipeline_of(clicks, lambda d: d.map(parse).filter(lambda x, y: y > 0.5))
    fed = sum(batch.records for batch in pipeline.minibatches(Shard(str(clicks), 0, 100)))
    assert 0 < fed < 100
    assert fed == pipeline.intake.fed == sum(label > 0.5 for label in labels_of(clicks)[:100])
    skips = pipeline.intake.skips
    assert skips.count(SkipReason.FEED) == skips.records == 100 - fed
    assert "records 0 to 100 of" in skips.reasons[SkipReason.FEED].example
    assert skips.rows_of(100) == fed


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda d: d.map(parse).take(100), DataError, "100 rows came out of feed for 128 records"),
        (lambda d: D.from_tensor_slices((MINE, MINE)), UserCodeError, "took 0 of records 0 to 128"),
        (lambda d: cached_by_hand(d.map(parse)), UserCodeError, "took 0 of records 0 to 128"),
        (lambda d: d.map(parse).skip(1), DataError, "127 rows came out of feed for 128 records"),
        (lambda d: d.map(parse).repeat(2), DataError, "256 rows came out of feed for 128 records"),
    ],
)
def test_the_account_of_a_task_sees_what_the_walk_would_miss(
    clicks: Path, monkeypatch: pytest.MonkeyPatch, change: Any, error: Any, said: str
) -> None:
    """A planted fault: nothing is refused, and every operation is believed to give each record once."""
    from elasticdl_worker.trainers.tensorflow.input import operations

    monkeypatch.setattr(operations, "inspect", lambda *_: operations.FeedShape())
    pipeline = pipeline_of(clicks, change)
    with pytest.raises(error, match=said):
        for _ in range(2):
            list(pipeline.minibatches(Shard(str(clicks), 0, 128)))


def labels_of(clicks: Path) -> list[float]:
    return [float(line.split(",")[0]) for line in clicks.read_text().splitlines()]


def matches(said: str, shown: str) -> bool:
    return re.search(said, shown, re.DOTALL) is not None


def kinds_of_dataset() -> set[str]:
    def below(kind: type) -> Iterator[type]:
        for one in kind.__subclasses__():
            yield one
            yield from below(one)

    for package in ("tensorflow.python.data.ops", "tensorflow.python.data.experimental.ops"):
        for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{found.name}")
    kinds = [one for one in below(dataset_ops.DatasetV2) if one.__module__.startswith("tensorflow.")]
    return {one.__name__ for one in kinds} | {"DatasetV2"}


def test_a_window_is_a_tensor_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("day,sold\n" + "".join(f"{day},{day * day}\n" for day in range(8)))
    module = ModelModule(
        path,
        (tmp_path,),
        lambda: None,
        feed=lambda d, mode, meta: d.map(lambda w: (tf.strings.to_number(w[:, 1]), tf.strings.to_number(w[-1, 0]))),
    )
    pipeline = InputPipeline(create_data_reader(str(path), None, {"window": 3, "stride": 2}), module, "training", 2)
    assert pipeline.features_spec.shape.as_list() == [None, 3]
    batches = list(pipeline.minibatches(Shard(str(path), 0, 3)))
    assert [value.tolist() for batch in batches for value in batch.features.numpy()] == [
        [0, 1, 4],
        [4, 9, 16],
        [16, 25, 36],
    ]
    assert [float(value) for batch in batches for value in batch.labels] == [2, 4, 6]
