"""Large blocks of memory stay with a worker, whatever TensorFlow's data pipelines do to the allocator."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.unit, pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is Linux'")]

BLOCK = 30 << 20
_BLOCKS = 30


class _Info(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


def has_own_mapping(size: int) -> bool:
    """Whether blocks of this size are mapped for themselves, and so go back to the kernel when they are freed."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Info
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    before = libc.mallinfo2().hblks
    # The first ones may find room that earlier tests left behind.
    blocks = [libc.malloc(size) for _ in range(_BLOCKS)]
    try:
        return bool(libc.mallinfo2().hblks > before)
    finally:
        for block in blocks:
            libc.free(block)


def test_large_blocks_are_kept_once_minibatches_were_read(tmp_path: Path) -> None:
    import numpy as np

    from elasticdl.data import create_data_reader
    from elasticdl.data.recordio import Writer
    from elasticdl_core.job import JobSpec
    from elasticdl_worker.trainers.tensorflow.input.pipeline import InputPipeline
    from elasticdl_worker.user_code import load_model_module

    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("another C library")
    with Writer(tmp_path / "a.recordio") as writer:
        for number in range(8):
            writer.write(np.array([number, 0], np.int64).tobytes())
    (tmp_path / "model.py").write_text(
        "import tensorflow as tf\n"
        "def forward():\n"
        "    return tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])\n"
        "def feed(dataset, mode, metadata):\n"
        "    def parse(record):\n"
        "        values = tf.ensure_shape(tf.io.decode_raw(record, tf.int64), [2])\n"
        "        return tf.cast(values[:1], tf.float32), values[1:]\n"
        "    return dataset.map(parse)\n"
    )
    data = str(tmp_path / "a.recordio")
    spec = JobSpec(name="memory", model_def="model.forward", training_data=data, minibatch_size=4)
    reader = create_data_reader(data, spec.records_per_task, {}, None)
    pipeline = InputPipeline(reader, load_model_module(spec, tmp_path), "training", 4)

    # What tf.data does to a whole process when its first generator starts, on Python 3.11.
    ctypes.CDLL(None).mallopt(-3, 128 << 10)
    assert has_own_mapping(BLOCK)
    batches = list(pipeline.minibatches(next(iter(reader.create_shards()))))

    assert [batch.records for batch in batches] == [4, 4]
    assert not has_own_mapping(BLOCK)
