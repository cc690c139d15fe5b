"""From the records of a task to minibatches, by the user's ``feed``.

The ``tf.data`` pipeline is built once, so that the user's functions are traced once; each task iterates it anew
over its own records. Records enter in chunks: one call into Python for hundreds of records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog

from elasticdl.data import DataReader, Shard
from elasticdl_core.errors import DataError, ElasticDLError, UserCodeError
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.vectorize import Chain, chain_of, same, vectorized
from elasticdl_worker.user_code import ModelModule, guarded

_CHUNK_RECORDS = 512
_COMPARED_RECORDS = 8
_PREFETCH = 2
_log = structlog.get_logger(__name__)
_ORDERED = {
    "_MapDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
    "_OptionsDataset",
    "_AssertCardinalityDataset",
    "_ModelDataset",
}


@dataclass(frozen=True)
class Minibatch:
    """Records as the model sees them.

    Attributes:
        features: nested tensors.
        labels: nested tensors; None in prediction.
        records: number of records.
    """

    features: Any
    labels: Any
    records: int


class InputPipeline:
    """Minibatches of tasks, for one mode.

    Args:
        reader: reads the records.
        module: the user's module, for its ``feed``; the reader's own is taken if the module has none.
        mode: ``training``, ``evaluation`` or ``prediction``.
        minibatch_size: records in a minibatch; the last one of a task may have fewer.

    Attributes:
        features_spec: nested ``tf.TypeSpec`` of a minibatch of features.
        labels_spec: the same of labels; None in prediction.
        ordered: whether record ``i`` of a task is record ``i`` of its minibatches: ``feed`` neither shuffles,
            filters nor multiplies.

    Raises:
        UserCodeError: there is no ``feed``, or it gives something that cannot be trained on.
        DataError: the first record is needed to know its form and cannot be read.
    """

    def __init__(self, reader: DataReader, module: ModelModule, mode: str, minibatch_size: int) -> None:
        self._reader = reader
        self._module = module
        self._mode = mode
        self._shard: Shard | None = None
        self._error: BaseException | None = None
        self._minibatch_size = minibatch_size
        self._chunk_records = _CHUNK_RECORDS
        self._raw_chunks = tf.data.Dataset.from_generator(self._chunks, output_signature=_chunk_spec(reader))
        source = self._raw_chunks.unbatch()
        feed = module.feed or reader.default_feed()
        if feed is None:
            feed = module.need("feed")
        with module.guard(f"feed (mode {mode})"):
            records = feed(source, str(mode), reader.metadata)
        if not isinstance(records, tf.data.Dataset):
            raise UserCodeError(
                f"feed in {module.path} returned a {type(records).__name__}",
                fix="return the tf.data.Dataset that the last transformation gave",
            )
        if int(records.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise UserCodeError(
                f"feed in {module.path} repeats the records without end",
                fix="remove .repeat(): --num_epochs says how often the data is read",
            )
        self.ordered = _keeps_order(records, source)
        self._chain = chain_of(records, source)
        self._dataset = records.batch(minibatch_size).prefetch(_PREFETCH).with_options(_options())
        self.features_spec, self.labels_spec = self._split(self._dataset.element_spec)

    def minibatches(self, shard: Shard) -> Iterator[Minibatch]:
        """Reads the minibatches of a shard; one shard at a time.

        Raises:
            DataError: the data cannot be read.
            UserCodeError: ``feed`` or the user's reader raised.
        """
        if self._chain is not None:
            self._try_whole_minibatches(shard, self._chain)
        self._shard, self._error = shard, None
        iterator = iter(self._dataset)
        while True:
            try:
                element = next(iterator)
            except StopIteration:
                return
            except Exception as error:
                raise self._explain(error, shard) from error
            features, labels = self._split(element)
            yield Minibatch(features, labels, _count(features))

    def _split(self, element: Any) -> tuple[Any, Any]:
        if self._mode == "prediction":
            return element, None
        if not isinstance(element, tuple) or len(element) != 2:
            shape = f"a tuple of {len(element)}" if isinstance(element, tuple) else f"a {type(element).__name__}"
            raise UserCodeError(
                f"feed in {self._module.path} gives {shape} for each record in mode {self._mode}",
                fix="give (features, labels)",
            )
        return element

    def _try_whole_minibatches(self, shard: Shard, chain: Chain) -> None:
        """Once: maps whole minibatches from now on, if on the first records that gives the same."""
        self._chain = None
        self._shard = Shard(shard.name, shard.start, min(shard.start + _COMPARED_RECORDS, shard.end))
        try:
            whole = vectorized(chain, self._raw_chunks)
            if not same(next(iter(whole)), next(iter(chain.mapped.batch(_COMPARED_RECORDS)))):
                return
        except Exception as error:
            _log.info("feed runs record by record", reason=str(error).strip().partition("\n")[0][:200])
            return
        if chain.shuffle is None:
            self._chunk_records = self._minibatch_size
        else:
            buffer, seed = chain.shuffle
            whole = whole.unbatch().shuffle(buffer, seed=seed or None).batch(self._minibatch_size)
        self._dataset = whole.prefetch(_PREFETCH).with_options(_options())

    def _chunks(self) -> Iterator[Any]:
        shard = self._shard
        if shard is None:
            return
        kind = self._reader.records_kind.kind
        try:
            with guarded("the data reader", self._module.roots):
                for records in self._reader.read_batches(shard, self._chunk_records):
                    if kind == "python":
                        yield tf.nest.map_structure(lambda *parts: np.stack(parts), *records)
                    else:
                        yield records
        except BaseException as error:
            self._error = error
            raise

    def _explain(self, error: Exception, shard: Shard) -> ElasticDLError:
        """The reader's own error if it failed, else what the user's ``feed`` did."""
        where = f"records {shard.start} to {shard.end} of {shard.name}"
        if isinstance(self._error, ElasticDLError):
            return self._error
        if isinstance(self._error, OSError):
            return DataError(f"{where}: {self._error}", fix="make the data readable to the workers")
        cause = self._error if isinstance(self._error, Exception) else error
        try:
            with self._module.guard(f"feed, on {where},"):
                raise cause
        except UserCodeError as explained:
            return explained


def _options() -> Any:
    """Options that halve the cost of a record: a pool of its own for the user's functions, and no tuning."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = max(1, tf.config.threading.get_intra_op_parallelism_threads())
    return options


def _chunk_spec(reader: DataReader) -> Any:
    """The nested ``tf.TypeSpec`` of a chunk of a reader's records."""
    spec = reader.records_kind
    if spec.kind == "bytes":
        return tf.TensorSpec([None], tf.string)
    if spec.kind == "columns":
        return tf.TensorSpec([None, spec.width], tf.string)
    shard = next(iter(reader.create_shards()))
    try:
        first = next(iter(reader.read_records(Shard(shard.name, shard.start, shard.start + 1))))
    except StopIteration:
        raise DataError(
            f"the reader yields no record for {shard.name} from {shard.start}",
            fix="let read_records(task) yield the records task.start to task.end",
        ) from None
    types = spec.output_types
    flat = None if types is None or isinstance(types, tf.DType | str) else tf.nest.flatten(types)

    def chunk_spec(value: Any, dtype: Any = None) -> Any:
        tensor = tf.convert_to_tensor(value, dtype)
        return tf.TensorSpec([None, *tensor.shape], tensor.dtype)

    if types is not None and flat is None:
        return tf.nest.map_structure(lambda value: chunk_spec(value, tf.as_dtype(types)), first)
    return tf.nest.map_structure(chunk_spec, first)


def _keeps_order(dataset: Any, source: Any) -> bool:
    """Whether a dataset gives one element for each of its source's, in order."""
    while dataset is not source:
        inputs = dataset._inputs()
        if type(dataset).__name__ not in _ORDERED or len(inputs) != 1:
            return False
        if type(dataset).__name__ == "_ParallelMapDataset" and not _deterministic(dataset):
            return False
        dataset = inputs[0]
    return True


def _deterministic(dataset: Any) -> bool:
    return str(getattr(dataset, "_deterministic", "default")) != "false" and (
        dataset.options().deterministic is not False
    )


def _count(features: Any) -> int:
    """The number of records in a minibatch."""
    first = tf.nest.flatten(features)[0]
    if isinstance(first, tf.SparseTensor):
        return int(first.dense_shape[0])
    if isinstance(first, tf.RaggedTensor):
        return int(first.nrows())
    return int(first.shape[0])
