"""From the records of a task to minibatches, by the user's ``feed``.

The ``tf.data`` pipeline is built once, so that the user's functions are traced once. A ``feed`` of maps that can run
on whole minibatches leaves ``tf.data`` after that: one compiled call makes a minibatch from its raw records. Others
iterate the pipeline anew for each task, over its own records, which enter in chunks: that costs 40 ms of CPU for each
task, and the user's functions run record by record. Members of a group read a minibatch at a time, for which that is
too much: there, maps that cannot run on whole minibatches run in a compiled loop over their records.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar, cast

import numpy as np
import structlog
from numpy.typing import NDArray

from elasticdl.data import DataReader, Shard
from elasticdl.data.columns import Columns, ColumnSpec, columns_of_records
from elasticdl.data.reader import Record
from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_core.shuffling import Reading
from elasticdl_runtime.memory import keep_large_blocks
from elasticdl_worker.reporting.accounts import Intake
from elasticdl_worker.trainers.alone import LOOKED_AT, refuse_combining
from elasticdl_worker.trainers.minibatch import Minibatch, not_a_pair
from elasticdl_worker.trainers.task_records import TaskRecords, records_at
from elasticdl_worker.trainers.tensorflow.compiled import CompiledFunction
from elasticdl_worker.trainers.tensorflow.drawing import draws, operations_of
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.input import operations
from elasticdl_worker.trainers.tensorflow.input.converters import reason_of
from elasticdl_worker.trainers.tensorflow.input.vectorize import (
    MapChain,
    equal_values,
    find_map_chain,
    one_by_one,
    silence_tensorflow,
    vectorize,
)
from elasticdl_worker.trainers.tensorflow.types import (
    Dataset,
    DType,
    Features,
    Nested,
    NestedSpec,
    Options,
    TypeSpec,
)
from elasticdl_worker.user_code import IN_GRAPH, ModelModule

E = TypeVar("E")
_CHUNK_RECORDS = 512
_COMPARED_RECORDS = 8
_PREFETCH = 2
_FASTER = (
    "write it with operations of whole tensors (tf.strings, tf.io.parse_example, arithmetic), for speed; texts of "
    "several words go into the model as they are, which splits them (keras.layers.TextVectorization)"
)
_POSITIVE = (1 << 63) - 1
_log = structlog.get_logger(__name__)


class _Shuffle:
    """A dataset's shuffle.

    Args:
        buffer: records of which the next one is drawn.
        seed: of the order; 0 for none.
    """

    def __init__(self, buffer: int, seed: int) -> None:
        self.buffer = buffer
        self._drawing = np.random.default_rng((seed & _POSITIVE) or None)

    def seeded(self, seed: int) -> _Shuffle:
        """The same one with another seed. TensorFlow's own may differ from one process to the next."""
        return _Shuffle(self.buffer, seed + 1)

    def order(self, count: int) -> NDArray[np.int64]:
        """The next order of so many records."""
        if self.buffer >= count:
            return self._drawing.permutation(count)
        held, found = list(range(self.buffer)), list[int]()
        for coming in range(self.buffer, count):
            place = int(self._drawing.integers(self.buffer))
            found.append(held[place])
            held[place] = coming
        return np.array([*found, *self._drawing.permutation(held)], np.int64)


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

    Raises:
        UserCodeError: there is no ``feed``, or it gives something that cannot be trained on.
        DataError: the first record is needed to know its form and cannot be read.
    """

    def __init__(self, reader: DataReader, module: ModelModule, mode: str, minibatch_size: int) -> None:
        self._reader = reader
        self._records = TaskRecords(reader, module)
        self._module = module
        self._mode = str(mode)
        self._fed = 0
        self._minibatch_size = minibatch_size
        self._chunk_spec = _chunk_spec(reader)
        source, records = self._feed()
        if not isinstance(records, tf.data.Dataset):
            raise UserCodeError(
                f"feed in {module.path} returned a {type(records).__name__}",
                fix="return the tf.data.Dataset that the last transformation gave",
            )
        self._shape = operations.inspect(records, source, module.path)
        self._parted = records if self._shape.parted and not _draws(records) else None
        self._chain = find_map_chain(records, source)
        self._whole: Callable[[object], Nested] | None = None
        self._first_read = False
        self._shuffle: _Shuffle | None = None
        self._dataset = self._batched(records)
        self._draws: bool | None = None
        self.features_spec, self.labels_spec = self._split(self._dataset.element_spec)

    def sample(self) -> Nested:
        """The features of a few records, to run the model on.

        Raises:
            DataError: they cannot be read.
            UserCodeError: ``feed`` raised, or gave nothing.
        """
        shard = next(iter(self._reader.create_shards()))
        few = Shard(shard.name, shard.start, min(shard.end, shard.start + _COMPARED_RECORDS))
        return next(iter(self.seeded_minibatches(few, None, 0))).features

    def minibatches(self, shard: Shard, reading: Reading | None = None) -> Iterator[Minibatch]:
        """Reads the minibatches of a shard; one shard at a time.

        Args:
            shard: the records, or their positions.
            reading: where the records of the positions lie, if they are shuffled.

        Raises:
            DataError: the data cannot be read.
            UserCodeError: ``feed`` or the user's reader raised.
        """
        if self._chain is not None:
            self._try_whole_minibatches(_first(shard, reading), self._chain)
        if self._parted is not None:
            few = records_at(self._reader, 0.0, LOOKED_AT)  # a group's part of an update may be two of them
            refuse_combining(functools.partial(self._rows, self._parted), few, nullcontext, self._module.path)
            self._parted = None
        if self._whole is not None and (self._shuffle is None or self._shuffle.buffer >= shard.end - shard.start):
            elements = self._whole_elements(shard, self._whole, self._shuffle)
        else:
            elements = iter(self._dataset)
        yield from self._counted(elements, shard, reading)

    def first(self, records: int, at: float = 0.0) -> Minibatch | None:
        """Records of the data from a place on, as part of it, or fewer; None if nothing is made of them.

        They are the same in each process.

        Raises:
            DataError: they cannot be read.
            UserCodeError: ``feed`` raised.
        """
        if _draws(self._dataset):
            tf.random.set_seed(0)
        few = records_at(self._reader, at, records)
        apart = InputPipeline(self._reader, self._module, self._mode, records)
        apart._parted = apart._chain = None
        return next(iter(apart.minibatches(few)), None)

    def seeded_minibatches(self, shard: Shard, reading: Reading | None, seed: int) -> Iterator[Minibatch]:
        """Reads the minibatches of a shard, so that they follow from its records and a number alone.

        A ``feed`` that draws is called anew for each shard: nothing else sets what TensorFlow keeps. The order of a
        shuffle behind maps is drawn here.

        Args:
            shard: as for ``minibatches``.
            reading: likewise.
            seed: of all that ``feed`` draws.
        """
        if self._draws is None:
            self._draws = self._prepare_seeded(_first(shard, reading))
        if self._draws:
            tf.random.set_seed(seed)
            self._dataset = self._batched(self._feed()[1])
        if self._whole is None:
            return self.minibatches(shard, reading)
        shuffle = self._shuffle and self._shuffle.seeded(seed)
        return self._counted(self._whole_elements(shard, self._whole, shuffle), shard, reading)

    def _prepare_seeded(self, first: Shard) -> bool:
        """Once: finds out how ``seeded_minibatches`` works; returns whether ``feed`` is to be called each time."""
        chain = self._chain
        if chain is not None and not _draws(chain.mapped):
            self._try_whole_minibatches(first, chain)
            if self._whole is None:
                self._try_one_by_one(chain)
        self._chain = None
        draws = self._whole is None and _draws(self._dataset)
        if draws:
            _log.info("feed draws random numbers: it is called for each range of records")
        return draws

    def _counted(self, elements: Iterator[Nested], shard: Shard, reading: Reading | None) -> Iterator[Minibatch]:
        self._records.begin(shard, reading)
        self._fed = 0
        while True:
            try:
                element = next(elements)
            except StopIteration:
                self._records.end(self._fed, exact=self._shape.exact)
                return
            except Exception as error:
                raise self._records.explain(error, _shown) from error
            self._keep_large_blocks()
            features, labels = self._split(element)
            records = _count(features)
            exact = self.ordered and not self._records.skipped
            yield Minibatch(features, labels, records, shard, shard.start + self._fed if exact else None, reading)
            self._fed += records

    def _rows(self, dataset: Dataset, ranges: Sequence[Shard]) -> list[bytes]:
        """The rows that ``feed`` makes of each of some ranges, as bytes; empty ones where a batch may pad them."""
        found: list[bytes] = []
        padded = not all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(dataset.element_spec))
        for one in ranges:
            self._records.begin(one)
            for row in dataset:
                values = [] if padded else [np.asarray(part).tolist() for part in tf.nest.flatten(row)]
                found.append(repr(values).encode())
        return found

    def _feed(self) -> tuple[Dataset, Dataset]:
        """The raw records, and what the user's ``feed`` makes of them."""
        source = tf.data.Dataset.from_generator(self._chunks, output_signature=self._chunk_spec).unbatch()
        feed = self._module.feed or self._reader.default_feed()
        if feed is None:
            feed = self._module.need("feed")
        guard = self._module.guard(f"feed (mode {self._mode})")
        with self._records.closed(), operations.caches_passed_over(), guard:
            return source, cast(Dataset, feed(source, self._mode, self._reader.metadata))

    def _batched(self, records: Dataset) -> Dataset:
        return records.batch(self._minibatch_size).prefetch(_PREFETCH).with_options(_options())

    @property
    def ordered(self) -> bool:
        """Whether the record at position ``i`` of a task is record ``i`` of its minibatches."""
        return self._shape.ordered

    @property
    def intake(self) -> Intake:
        """The intake of the present shard so far."""
        return Intake(self._fed, self._records.skips)

    def _keep_large_blocks(self) -> None:
        """Once, after the first element: TensorFlow undoes it in its first generator on Python 3.11."""
        if not self._first_read:
            self._first_read = True
            keep_large_blocks()

    def _whole_elements(
        self, shard: Shard, whole: Callable[[object], Nested], shuffle: _Shuffle | None
    ) -> Iterator[Nested]:
        """Minibatches without ``tf.data``."""
        if shuffle is None:
            yield from map(whole, self._raw(self._minibatch_size))
            return
        for everything in map(whole, self._raw(shard.end - shard.start)):
            order = shuffle.order(_count(everything))
            for at in range(0, len(order), self._minibatch_size):
                chosen = order[at : at + self._minibatch_size]
                yield tf.nest.map_structure(lambda values, chosen=chosen: tf.gather(values, chosen), everything)

    def _split(self, element: E) -> tuple[E, E | None]:
        if self._mode == "prediction":
            return element, None
        if not isinstance(element, tuple) or len(element) != 2:
            raise not_a_pair(element, self._module.path, self._mode)
        return element

    def _try_whole_minibatches(self, shard: Shard, chain: MapChain) -> None:
        """Once: makes whole minibatches from now on, if from the first records that gives the same."""
        self._chain = None
        self._records.begin(Shard(shard.name, shard.start, min(shard.start + _COMPARED_RECORDS, shard.end)))
        try:
            with silence_tensorflow():
                whole = CompiledFunction(vectorize(chain), (self._chunk_spec,))
            if not equal_values(
                whole(next(self._raw(_COMPARED_RECORDS))), next(iter(chain.mapped.batch(_COMPARED_RECORDS)))
            ):
                _log.warning(
                    "feed runs record by record", reason="minibatches are not what single records are: it draws"
                )
                return
        except Exception as error:
            _log.warning("feed runs record by record", reason=reason_of(error, chain.maps), fix=_FASTER)
            return
        self._use(self._or_one_by_one(whole, chain), chain)

    def _or_one_by_one(self, whole: Callable[[object], Nested], chain: MapChain) -> Callable[[object], Nested]:
        """Whole minibatches, and of those that fail so the records one by one: what is wrong there is the user's."""
        single: Callable[[object], Nested] | None = None

        def made(raw: object) -> Nested:
            nonlocal single
            try:
                return whole(raw)
            except tf.errors.OpError as error:
                if single is None:
                    _log.warning("a minibatch is made record by record", reason=reason_of(error, chain.maps))
                    single = self._looped(chain)
                return single(raw)

        return made

    def _looped(self, chain: MapChain) -> Callable[[object], Nested]:
        """A compiled loop over the records of a minibatch."""
        with silence_tensorflow():
            threads = tf.config.threading.get_intra_op_parallelism_threads()
            return CompiledFunction(one_by_one(chain, threads), (self._chunk_spec,))

    def _try_one_by_one(self, chain: MapChain) -> None:
        """Makes minibatches by a compiled loop over their records from now on, if TensorFlow can compile one."""
        try:
            looped = self._looped(chain)
        except Exception as error:
            _log.warning("feed runs in a dataset of its own each time", reason=reason_of(error, chain.maps))
            return
        self._use(looped, chain)

    def _use(self, whole: Callable[[object], Nested], chain: MapChain) -> None:
        self._shuffle = None if chain.shuffle is None else _Shuffle(*chain.shuffle)
        self._whole = whole

    def _raw(self, size: int) -> Iterator[Nested]:
        """The raw records of the present shard as tensors, ``size`` at a time."""
        for records in self._chunks(size):
            yield tf.nest.map_structure(
                lambda spec, part: part if tf.is_tensor(part) else tf.convert_to_tensor(part, spec.dtype),
                self._chunk_spec,
                records,
            )

    def _chunks(self, size: int = _CHUNK_RECORDS) -> Iterator[object]:
        kind = self._reader.records_kind

        def chunk(records: list[Record]) -> object:
            if kind.kind == "python":
                return tf.nest.map_structure(_stacked, *records)
            if kind.kind == "table":
                return _tensors(columns_of_records(records, kind.columns), kind.columns)
            return np.array(records, object)

        return self._records.batches(size, chunk)


def _stacked(*parts: object) -> NDArray[Any]:
    """Values of several records as one array; bytes as they are, of which numpy would drop zeros at the end."""
    return np.array(parts, object) if isinstance(parts[0], bytes | str) else np.stack(cast(Any, parts))


def _tensors(columns: Columns, specs: Mapping[str, ColumnSpec]) -> dict[str, object]:
    """Columns as TensorFlow takes them: lists of any length are ragged."""
    return {name: _ragged(values, specs[name]) if specs[name].ragged else values for name, values in columns.items()}


def _ragged(rows: NDArray[Any], spec: ColumnSpec) -> object:
    flat = np.concatenate([np.empty(0, _numpy_dtype(spec)), *rows])
    return tf.RaggedTensor.from_row_lengths(tf.constant(flat, _dtype(spec)), [len(row) for row in rows])


def _numpy_dtype(spec: ColumnSpec) -> Any:
    return object if spec.dtype in ("str", "bytes") else spec.dtype


def _dtype(spec: ColumnSpec) -> DType:
    return tf.string if spec.dtype in ("str", "bytes") else tf.as_dtype(spec.dtype)


def _first(shard: Shard, reading: Reading | None) -> Shard:
    """Some records of a shard."""
    return shard if reading is None else reading.example(_COMPARED_RECORDS)


def _shown(error: Exception) -> Exception:
    """An error of a compiled function without the frames of its tracing, which are TensorFlow's and ours."""
    found = IN_GRAPH.search(str(error))
    if not isinstance(error, tf.errors.OpError) or found is None:
        return error
    shown: Exception = type(error)(None, None, found[1])
    return shown.with_traceback(error.__traceback__)


def _options() -> Options:
    """Options that halve the cost of a record: a pool of its own for the user's functions, and no tuning."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = max(1, tf.config.threading.get_intra_op_parallelism_threads())
    return options


def _chunk_spec(reader: DataReader) -> NestedSpec:
    """The nested ``tf.TypeSpec`` of a chunk of a reader's records."""
    spec = reader.records_kind
    if spec.kind == "table":
        return {
            name: tf.RaggedTensorSpec([None, None], _dtype(one), 1)
            if one.ragged
            else tf.TensorSpec([None, *one.shape], _dtype(one))
            for name, one in spec.columns.items()
        }
    if spec.kind != "python":
        shape = [size for size in (spec.window, spec.width) if size is not None]
        return tf.TensorSpec([None, *shape], tf.string)
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

    def chunk_spec(value: object, dtype: DType | None = None) -> TypeSpec:
        tensor = tf.convert_to_tensor(value, dtype)
        return tf.TensorSpec([None, *tensor.shape], tensor.dtype)

    if types is not None and flat is None:
        return tf.nest.map_structure(lambda value: chunk_spec(value, tf.as_dtype(types)), first)
    return tf.nest.map_structure(chunk_spec, first)


def _draws(dataset: Dataset) -> bool:
    """Whether a dataset shuffles, or draws by a state that TensorFlow keeps."""
    ignored = tf.data.experimental.ExternalStatePolicy.IGNORE
    definition = tf.compat.v1.GraphDef()
    definition.ParseFromString(dataset._as_serialized_graph(external_state_policy=ignored).numpy())
    return any(draws(operation) or operation.startswith("Shuffle") for operation in operations_of(definition))


def _count(features: Features) -> int:
    """The number of records in a minibatch."""
    first = tf.nest.flatten(features)[0]
    if isinstance(first, tf.SparseTensor):
        return int(first.dense_shape[0])
    if isinstance(first, tf.RaggedTensor):
        return int(first.nrows())
    return int(first.shape[0])
