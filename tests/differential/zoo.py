"""Sources of the rows' modules: a beginning that all share, and the parts that differ."""

from __future__ import annotations

import textwrap

import numpy as np

PRELUDE = '''
import numpy as np
import tensorflow as tf
import keras
from keras import layers


def forward():
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(1)(layers.Dense(6, activation="tanh")(x)))


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions))


def optimizer(lr=0.05):
    return keras.optimizers.SGD(lr)


def parse(record):
    numbers = tf.strings.to_number(record[:9], tf.float32)
    return {
        "y": numbers[:1],
        "c": tf.cast(numbers[1], tf.int32),
        "x": numbers[2:6],
        "ids": tf.cast(numbers[6:9], tf.int64),
        "word": record[9:10],
    }


def give(features, label="y"):
    """A feed that gives these columns, and a label."""

    def pick(record, mode):
        parsed = parse(record)
        given = {key: parsed[key] for key in features} if isinstance(features, tuple) else parsed[features]
        return given if mode == "prediction" else (given, parsed[label])

    return lambda dataset, mode, metadata: dataset.map(lambda record: pick(record, mode))


feed = give("x")
'''


def module(*parts: str) -> str:
    """A module that has these definitions in place of the usual ones."""
    return PRELUDE + "".join("\n\n" + textwrap.dedent(part).strip() + "\n" for part in parts)


def net(
    *lines: str, features: str = "x", shape: str = "(4,)", dtype: str = "None", last: str = "layers.Dense(1)(h)"
) -> str:
    """A functional model: lines that make ``h`` of ``h``, and a last line that makes the output of it."""
    body = "\n".join(f"    {line}" for line in lines)
    feed = f'feed = give("{features}")\n\n\n' if features != "x" else ""
    return (
        f"{feed}def forward():\n    h = i = keras.Input({shape}, name={features!r}, dtype={dtype})\n{body}\n"
        f"    return keras.Model(i, {last})"
    )


def features_like(spec: object) -> object:
    """A minibatch of features of a form."""
    import tensorflow as tf

    rng = np.random.default_rng(9)

    def fill(one: tf.TensorSpec) -> tf.Tensor:
        shape = [8 if size is None else size for size in one.shape]
        if one.dtype == tf.string:
            return tf.constant(rng.choice(["red", "blue", "no such word"], shape))
        if one.dtype.is_integer:
            return tf.constant(rng.integers(0, 50, shape), one.dtype)
        return tf.constant(rng.normal(size=shape), one.dtype)

    return tf.nest.map_structure(fill, spec)
