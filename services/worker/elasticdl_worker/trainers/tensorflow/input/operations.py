"""Rules for operations of ``feed``: each operation of ``tf.data`` is allowed, passed over, or refused by name.

People think of ``feed`` as run once, over all of the data. It is run for each task, over the records of the task.
Where an operation treats each record by itself, that is the same. Where it counts, keeps or combines records across
the data it would do something else: act on each task, or train the same records again and again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import structlog

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.alone import WINDOWS
from elasticdl_worker.trainers.tensorflow.drawing import operations_of
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.types import Dataset

_log = structlog.get_logger(__name__)
_in_feed: ContextVar[bool] = ContextVar("_in_feed", default=False)
_WHOLE_DATA = "feed sees the records of one task at a time, not all of the data"
_OWN_SOURCE = (
    "let feed transform the dataset that it is given, and nothing else: the job reads its data, each record "
    "once in an epoch (--training_data, --validation_data, --prediction_data, or custom_data_reader)"
)
_OWN_MINIBATCHES = "leave .batch() out, or follow it by .unbatch(): --minibatch_size makes minibatches"
_OWN_ORDER = "leave it out: the job shuffles (--shuffle), and --num_epochs says how often the data is read"
_BY_RECORD = "treat each record by itself (map, filter, flat_map)"
_CHOOSE_DATA = (
    f"{_BY_RECORD}; records that are to be left out are left out of the data, or by a filter on what they hold"
)
_ENDLESS = -1


@dataclass(frozen=True)
class FeedShape:
    """The effect of a ``feed`` on the records that it is given.

    Attributes:
        ordered: whether element ``i`` is of record ``i``: nothing shuffles, filters or multiplies.
        exact: whether there is one element for each record, in whatever order.
        batched: how many times elements were put together into minibatches that are not taken apart again.
        parted: some were put together, and taken apart again: what was done between may have combined them.
    """

    ordered: bool = True
    exact: bool = True
    batched: int = 0
    parted: bool = False

    def __and__(self, other: FeedShape) -> FeedShape:
        return FeedShape(
            self.ordered and other.ordered,
            self.exact and other.exact,
            max(self.batched, other.batched),
            self.parted or other.parted,
        )


_Effect = Callable[[FeedShape], FeedShape]


@dataclass(frozen=True)
class Refusal:
    """Why an operation is not carried out.

    Attributes:
        does: what the user's ``feed`` does, after its name.
        fix: what to do instead.
    """

    does: str
    fix: str


def _alike(shape: FeedShape) -> FeedShape:
    return shape


def _reordered(shape: FeedShape) -> FeedShape:
    return replace(shape, ordered=False)


def _other_number(shape: FeedShape) -> FeedShape:
    return replace(shape, ordered=False, exact=False)


def _batched(shape: FeedShape) -> FeedShape:
    return replace(_other_number(shape), batched=shape.batched + 1)


def _unbatched(shape: FeedShape) -> FeedShape:
    return replace(_other_number(shape), batched=max(0, shape.batched - 1), parted=shape.batched > 0)


def _counts(name: str, what: str) -> Refusal:
    return Refusal(f"uses {name}, which {what}; {_WHOLE_DATA}", _CHOOSE_DATA)


def _combines(name: str, what: str = "makes one element of several records") -> Refusal:
    return Refusal(f"uses {name}, which {what}; {_WHOLE_DATA}", f"{_BY_RECORD}; {WINDOWS}")


def _source(name: str) -> Refusal:
    return Refusal(f"reads {name} instead of the records that it is given", _OWN_SOURCE)


def _stored(name: str) -> Refusal:
    return Refusal(
        f"uses {name}, which keeps what it saw for the records that come later; {_WHOLE_DATA}",
        "leave it out: records are read from where they are",
    )


_ELSEWHERE = "leave it out: workers place what they read themselves, and a job has as many of them as it asks for"
_CACHE = Refusal(
    f"keeps records by cache(), and would train them again in place of others; {_WHOLE_DATA}",
    "write dataset.cache(), which is passed over, or leave it out",
)
_OTHER_ZIP = Refusal(
    f"uses zip (as enumerate does) with what does not come from the records, and counts them; {_WHOLE_DATA}",
    _BY_RECORD,
)
_REPEAT = Refusal("repeats the records", "remove .repeat(): --num_epochs says how often the data is read")

OPERATIONS: dict[str, _Effect | Refusal] = {
    # One element for each.
    "_MapDataset": _alike,
    "_ParallelMapDataset": _alike,
    "_ParseExampleDataset": _alike,
    "_DenseToRaggedDataset": _alike,
    "_PrefetchDataset": _alike,
    "_OptionsDataset": _alike,
    "_ModelDataset": _alike,
    "_RestructuredDataset": _alike,
    "DatasetV1Adapter": _alike,
    "_AssertNextDataset": _alike,
    "_AssertPrevDataset": _alike,
    "_NonSerializableDataset": _alike,
    "_SleepDataset": _alike,
    "_ShuffleDataset": _reordered,
    # More or fewer of each.
    "_FilterDataset": _other_number,
    "_IgnoreErrorsDataset": _other_number,
    "_FlatMapDataset": _other_number,
    "_InterleaveDataset": _other_number,
    "_ParallelInterleaveDataset": _other_number,
    "ParallelInterleaveDataset": _other_number,
    # Together, and apart again.
    "_BatchDataset": _batched,
    "_ParallelBatchDataset": _batched,
    "_PaddedBatchDataset": _batched,
    "_DenseToSparseBatchDataset": _batched,
    "_MapAndBatchDataset": _batched,
    "_RebatchDataset": _other_number,
    "_LegacyRebatchDataset": _other_number,
    "_UnbatchDataset": _unbatched,
    # Of several datasets; each has to come from the records.
    "_ZipDataset": _alike,
    "_ConcatenateDataset": _other_number,
    # What counts.
    "_TakeDataset": _counts("take", "counts records from the beginning"),
    "_SkipDataset": _counts("skip", "counts records from the beginning"),
    "_TakeWhileDataset": _counts("take_while", "ends with a record"),
    "_ShardDataset": _counts("shard", "counts records from the beginning"),
    "_AutoShardDataset": _counts("auto_shard", "counts records from the beginning"),
    "_AssertCardinalityDataset": Refusal(
        f"says by assert_cardinality how many records there are; {_WHOLE_DATA}", "leave it out"
    ),
    "_RepeatDataset": _REPEAT,
    "_ShuffleAndRepeatDataset": _REPEAT,
    # What keeps.
    "CacheDataset": _CACHE,
    "_SnapshotDataset": _stored("snapshot"),
    "_LegacySnapshotDataset": _stored("snapshot"),
    "_SaveDataset": _stored("save"),
    "_ScanDataset": _combines("scan", "hands a state from record to record"),
    "_UniqueDataset": _combines("unique", "compares each record with all before it"),
    # What combines.
    "_WindowDataset": _combines("window"),
    "_GroupByWindowDataset": _combines("group_by_window (as bucket_by_sequence_length does)"),
    "_GroupByReducerDataset": _combines("group_by_reducer"),
    "_DirectedInterleaveDataset": _combines(
        "sample_from_datasets or choose_from_datasets (as rejection_resample does)", "chooses among records"
    ),
    "_GlobalShuffleDataset": Refusal("uses global_shuffle, which draws from all of the data", _OWN_ORDER),
    # What belongs to other machinery.
    "_CopyToDeviceDataset": Refusal("copies records to a device", _ELSEWHERE),
    "_MapOnGpuDataset": Refusal("maps on a device", _ELSEWHERE),
    "_PerDeviceGenerator": Refusal("shares records out to devices", _ELSEWHERE),
    "_ReincarnatedPerDeviceGenerator": Refusal("shares records out to devices", _ELSEWHERE),
    "_DataServiceDataset": Refusal("uses the tf.data service", _ELSEWHERE),
    "_DataServiceDatasetV1": Refusal("uses the tf.data service", _ELSEWHERE),
    "_DataServiceDatasetV2": Refusal("uses the tf.data service", _ELSEWHERE),
    "_RemoteDataset": Refusal("reads on another machine", _ELSEWHERE),
    "DTensorDataset": Refusal("shares records out to devices", _ELSEWHERE),
    # Sources.
    "_VariantDataset": _source("a dataset made by from_variant"),
    "_GeneratorDataset": _source("a generator"),
    "_TensorDataset": _source("from_tensors(...) or a generator"),
    "_TensorSliceDataset": _source("from_tensor_slices(...)"),
    "_SparseTensorSliceDataset": _source("from_sparse_tensor_slices(...)"),
    "_ListDataset": _source("from_list(...)"),
    "_RangeDataset": _source("a counter (range, enumerate)"),
    "_RandomDataset": _source("random numbers"),
    "RandomDataset": _source("random numbers"),
    "RandomDatasetV1": _source("random numbers"),
    "RandomDatasetV2": _source("random numbers"),
    "_LoadDataset": _source("a saved dataset"),
    "_SnapshotChunkDataset": _source("a saved dataset"),
    "_ListSnapshotChunksDataset": _source("a saved dataset"),
    "MatchingFilesDataset": _source("a list of files"),
    **{
        name: _source(f"files by itself ({name.strip('_')})")
        for kind in ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "CsvDataset", "SqlDataset")
        for name in (kind, f"_{kind}", f"{kind}V1", f"{kind}V2")
    },
}
"""By the class that TensorFlow gives what an operation makes. What is not here is refused as unknown."""
_MANY_OF_EACH = {
    "_FlatMapDataset": "flat_map",
    "_InterleaveDataset": "interleave",
    "_ParallelInterleaveDataset": "interleave",
    "ParallelInterleaveDataset": "interleave",
}
_ENDLESS_INSIDE = {"RandomDataset", "RandomDatasetV2"}
_COUNTS = ("AssignAddVariableOp", "AssignSubVariableOp", "ResourceScatter")  # a seed that moves on is assigned
_DROPS_REMAINDER = ("_drop_remainder", "_drop_remainder_t")


def inspect(dataset: Dataset, source: Dataset, path: object) -> FeedShape:
    """Walks from what ``feed`` returned to the records that it was given.

    Args:
        dataset: what it returned.
        source: the records.
        path: the user's module, for messages.

    Raises:
        UserCodeError: ``feed`` does with the records what would mean something else for each task than for all of the
            data, or reads others.
    """

    def refused(refusal: Refusal) -> UserCodeError:
        return UserCodeError(f"feed in {path} {refusal.does}", fix=refusal.fix)

    loose = dataset.options().deterministic is False  # said behind a map, it holds for the map as well

    def walk(one: Any) -> FeedShape:
        if one is source:
            return FeedShape()
        name = type(one).__name__
        effect = OPERATIONS.get(name)
        if name == "_RepeatDataset" and int(one._count) == 1:
            effect = _alike
        if name == "_ZipDataset" and not all(_leads_to(source, part) for part in one._inputs()):
            effect = _OTHER_ZIP
        if name == "_RepeatDataset" and int(one._count) == _ENDLESS:
            effect = replace(_REPEAT, does=f"{_REPEAT.does} without end")
        if effect is None:
            raise refused(Refusal(f"uses {name.strip('_')}, which ElasticDL does not know", _BY_RECORD))
        if isinstance(effect, Refusal):
            raise refused(effect)
        inputs = one._inputs()
        if not inputs:
            raise refused(_source(f"a {name.strip('_')}"))
        if any(_is_true(getattr(one, attribute, False)) for attribute in _DROPS_REMAINDER):
            raise refused(
                Refusal("leaves records out by drop_remainder=True, at the end of each task", _OWN_MINIBATCHES)
            )
        if (refusal := _refused_inside(one)) is not None:
            raise refused(refusal)
        shapes = [walk(part) for part in inputs]
        if name == "_ZipDataset" and not all(shape.ordered for shape in shapes):
            raise refused(_combines("zip", "joins elements by their number, of which some were shuffled or left out"))
        shape = functools.reduce(FeedShape.__and__, shapes)
        if shape.batched and name in _MANY_OF_EACH:
            raise refused(_combines(f"batch with {_MANY_OF_EACH[name]}"))
        shape = effect(shape)
        if name == "_ParallelMapDataset" and (loose or not _deterministic(one)):
            return _reordered(shape)
        return shape

    shape = walk(dataset)
    if shape.batched:
        raise refused(Refusal("gives minibatches of its own", _OWN_MINIBATCHES))
    return shape


@contextmanager
def caches_passed_over() -> Iterator[None]:
    """Has ``Dataset.cache`` of this thread give the dataset itself: a cache is a wish for speed.

    It would hold the records of the first task, and give them for those of all others.
    """
    _let_caches_be_passed_over()
    token = _in_feed.set(True)
    try:
        yield
    finally:
        _in_feed.reset(token)


@functools.cache
def _let_caches_be_passed_over() -> None:
    original = tf.data.Dataset.cache

    @functools.wraps(original)
    def cache(self: Any, *arguments: Any, **named: Any) -> Any:
        if not _in_feed.get():
            return original(self, *arguments, **named)
        _log.warning("passed over cache() in feed", reason="each task has other records")
        return self

    tf.data.Dataset.cache = cache


def _leads_to(source: Dataset, dataset: Dataset) -> bool:
    return dataset is source or any(_leads_to(source, part) for part in dataset._inputs())


def _refused_inside(dataset: Any) -> Refusal | None:
    """Why the function of an operation, such as that of a map, cannot be run task by task; None if it can."""
    for wrapper in dataset._functions():
        definition = wrapper.function.graph.as_graph_def()
        operations = operations_of(definition)
        if any(one.startswith(_COUNTS) for one in operations):
            return Refusal(
                "changes a variable for each record, of which each worker has one of its own",
                "let what feed makes of a record follow from the record alone",
            )
        if not _ENDLESS_INSIDE.isdisjoint(operations) or _repeats_without_end(definition):
            return Refusal(
                "makes elements of a record without end",
                "give the .repeat() within flat_map a count, or leave it out",
            )
        if "CacheDataset" in operations or "CacheDatasetV2" in operations:
            return _CACHE
    return None


def _repeats_without_end(definition: Any) -> bool:
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        values = {node.name: node.attr["value"].tensor for node in nodes if node.op == "Const"}
        for node in nodes:
            if node.op == "RepeatDataset":
                count = values.get(node.input[1].partition(":")[0])
                if count is not None and int(tf.make_ndarray(count)) == _ENDLESS:
                    return True
    return False


def _is_true(value: Any) -> bool:
    return bool(tf.get_static_value(value)) if tf.is_tensor(value) else bool(value)


def _deterministic(dataset: Any) -> bool:
    return str(getattr(dataset, "_deterministic", "default")) != "false" and (
        dataset.options().deterministic is not False
    )
