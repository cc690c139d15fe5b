"""Loads the exported digits model with plain Keras and TensorFlow, no ElasticDL, and measures its accuracy.

    python check_export.py ARTIFACTS VALIDATION_DIR

Prints one line of JSON: accuracy of the ``.keras`` file and of the SavedModel.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

_HEADER = struct.Struct("<IIIII")


def read_recordio(directory: Path) -> list[bytes]:
    """The records of all uncompressed RecordIO files of a directory (format: docs/data-formats.md)."""
    records = []
    for path in sorted(directory.glob("*.recordio")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            _, _, compressor, size, count = _HEADER.unpack_from(data, at)
            assert compressor == 0, "generate the digits without compression"
            at += _HEADER.size
            end = at + size
            for _ in range(count):
                (length,) = struct.unpack_from("<I", data, at)
                records.append(data[at + 4 : at + 4 + length])
                at += 4 + length
            assert at == end
    return records


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Share of rows whose largest logit is the label's."""
    return float(np.mean(np.argmax(logits, axis=1) == labels))


def main(artifacts: Path, validation: Path) -> None:
    """Prints the accuracies."""
    description = {"image": tf.io.FixedLenFeature([8, 8], tf.float32), "label": tf.io.FixedLenFeature([1], tf.int64)}
    parsed = tf.io.parse_example(tf.constant(read_recordio(validation)), description)
    images, labels = parsed["image"] / 16.0, parsed["label"].numpy().reshape(-1)
    keras_file = next(artifacts.rglob("*.keras"))
    saved_model = next(artifacts.rglob("saved_model.pb")).parent
    result = {
        "keras": accuracy(keras.models.load_model(keras_file).predict(images, verbose=0), labels),
        "saved_model": accuracy(
            next(iter(tf.saved_model.load(str(saved_model)).signatures["serving_default"](images).values())).numpy(),
            labels,
        ),
    }
    assert not any(name.split(".")[0].startswith("elasticdl") for name in sys.modules), "this must be a plain process"
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
