"""Teaches ``tf.vectorized_map`` operations of records that TensorFlow runs one record at a time: texts and images.

Where the results of records may differ in size, the operation of a minibatch fails at run time; its records are then
made one by one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.types import Tensor, TracedFunction, VectorizedOperation

_ELEMENTWISE = (
    "AsString",
    "DecodeRaw",
    "StaticRegexReplace",
    "StringLength",
    "StringLower",
    "StringStrip",
    "StringToHashBucketFast",
    "StringToHashBucketStrong",
    "StringToNumber",
    "StringUpper",
)
_IMAGES = ("DecodeBmp", "DecodeGif", "DecodeImage", "DecodeJpeg", "DecodePng")
_UNKNOWN = re.compile(r"No pfor vectorization defined for (\w+)\s+name: \"([^\"]+)\"")

_UNEQUAL = re.compile(r"\{\{node (?:loop_body/)?([^}]+?)/pfor/")
"""An operation of whole minibatches that failed: its values do not lie one under the other."""


def register_converters() -> None:
    """Registers them, once."""
    from tensorflow.python.ops.parallel_for import pfor

    converters: dict[str, Callable[[VectorizedOperation], object]] = {
        **dict.fromkeys(_ELEMENTWISE, _elementwise),
        **dict.fromkeys(_IMAGES, _one_by_one),
        "LookupTableFindV2": _lookup,
        "StringJoin": _join,
        "StringSplitV2": _split,
        "Substr": _substring,
    }
    for name, convert in converters.items():
        if name not in pfor._pfor_converter_registry:
            pfor.RegisterPFor(name)(convert)


def reason_of(error: Exception, functions: tuple[TracedFunction, ...]) -> str:
    """Why functions of one record are not made whole minibatches of: the operation, and the user's line that has it.

    Args:
        error: what making it raised.
        functions: those.
    """
    text = str(error).strip()
    found, unequal = _UNKNOWN.search(text), _UNEQUAL.search(text)
    if unequal is not None:
        node = unequal[1]
        operation = node.rpartition("/")[2].rstrip("_0123456789").removesuffix("V")
        return f"what {operation}{_place(node, functions)} gives differs in size from record to record"
    if found is None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return (lines or [type(error).__name__])[-1][:200]
    operation, node = found.groups()
    return f"the operation {operation}{_place(node, functions)} is done for one record at a time alone"


def _place(node: str, functions: tuple[TracedFunction, ...]) -> str:
    return next(filter(None, (_line_of(function, node) for function in functions)), "")


def _line_of(function: Any, node: str) -> str:
    """The last line of a file that is not of a library, among those that made an operation."""
    with contextlib.suppress(Exception):  # of TensorFlow's inside, which may be another one
        from tensorflow.python.eager import context

        info = context.context().get_graph_debug_info(function.name)
        frames = [info.frames_by_id[one] for one in info.traces_by_id[info.name_to_trace_id[node]].frame_id]
        of_user = [one for one in frames if "site-packages" not in info.files[one.file_index]]
        if of_user:
            return f" ({Path(info.files[of_user[-1].file_index]).name}, line {of_user[-1].line})"
    return ""


def _wrap(tensor: Tensor, *, stacked: bool = True) -> object:
    from tensorflow.python.ops.parallel_for import pfor

    return pfor.wrap(tensor, stacked)


def _again(operation: Any, inputs: list[Tensor]) -> list[Tensor]:
    """The outputs of the same operation of other inputs."""
    from tensorflow.python.ops.parallel_for import pfor

    outputs = [output.dtype for output in operation.outputs]
    return list(pfor._create_op(operation.type, inputs, outputs, attrs=operation.node_def.attr).outputs)


def _elementwise(given: VectorizedOperation) -> object:
    """Each element by itself, in whatever shape."""
    return _wrap(_again(given.op, [given.stacked_input(0)])[0])


def _lookup(given: VectorizedOperation) -> object:
    """A table's values of each key."""
    found = tf.raw_ops.LookupTableFindV2(
        table_handle=given.unstacked_input(0), keys=given.stacked_input(1), default_value=given.unstacked_input(2)
    )
    return _wrap(found)


def _one_by_one(given: VectorizedOperation) -> object:
    """Images in a loop inside; it fails where they differ in size."""
    operation = given.op
    output = operation.outputs[0]
    signature = tf.TensorSpec(output.shape, output.dtype)
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    return _wrap(
        tf.map_fn(
            lambda one: _again(operation, [one])[0],
            given.stacked_input(0),
            fn_output_signature=signature,
            parallel_iterations=max(1, threads),
        )
    )


def _alike(given: Any, places: range) -> list[Tensor]:
    """Some inputs, each of a record or of all, in one shape with the records as the first dimension."""
    tensors = []
    rank = max(given.op.inputs[at].shape.rank for at in places)
    for at in places:
        wrapped = given.input(at)
        tensor = wrapped.t if wrapped.is_stacked else wrapped.t[None]
        missing = rank - given.op.inputs[at].shape.rank
        tensors.append(tf.reshape(tensor, tf.concat([tf.shape(tensor)[:1], [1] * missing, tf.shape(tensor)[1:]], 0)))
    shape = tf.shape(tensors[0])
    for tensor in tensors[1:]:
        shape = tf.broadcast_dynamic_shape(shape, tf.shape(tensor))
    return [tf.broadcast_to(tensor, shape) for tensor in tensors]


def _join(given: VectorizedOperation) -> object:
    """Texts joined, element by element."""
    inputs = _alike(given, range(len(given.op.inputs)))
    return _wrap(_again(given.op, inputs)[0])


def _substring(given: VectorizedOperation) -> object:
    """Parts of texts, element by element."""
    text, start, length = _alike(given, range(3))
    flat = [tf.reshape(one, [-1]) for one in (text, start, length)]
    return _wrap(tf.reshape(_again(given.op, flat)[0], tf.shape(text)))


def _split(given: VectorizedOperation) -> object:
    """Texts split, in each record into as many parts: where they are is then the same for all; it fails where not."""
    text, separator = given.stacked_input(0), given.unstacked_input(1)
    records, texts = tf.shape(text)[0], tf.shape(text)[1]
    indices, values, _ = _again(given.op, [tf.reshape(text, [-1]), separator])
    parts = tf.reshape(
        tf.math.bincount(tf.cast(indices[:, 0], tf.int32), minlength=records * texts), [records, texts]
    )
    with tf.control_dependencies([tf.debugging.assert_equal(parts, tf.broadcast_to(parts[:1], tf.shape(parts)))]):
        of_one = indices[: tf.reduce_sum(parts[0])]
        shape = tf.cast(tf.stack([texts, tf.reduce_max(parts[0])]), tf.int64)
        each = tf.reshape(values, tf.stack([records, tf.shape(of_one)[0]]))
    return _wrap(of_one, stacked=False), _wrap(each), _wrap(shape, stacked=False)
