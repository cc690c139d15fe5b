"""A model whose minibatches take a set time without using a core: as many workers as slots, on any machine.

Everything else is real: records are leased, read and reported, parameters pulled, gradients computed and pushed. Each
worker notes when its minibatches ended in a file of its own below ``$EXPERIMENT_STEPS``.
"""

import os
import threading
import time
from pathlib import Path

import tensorflow as tf


class Pace:
    """Ends a minibatch every ``step_s`` seconds: what the rest of a minibatch takes is part of that time."""

    def __init__(self):
        self._last = 0.0
        self._file = None
        self._lock = threading.Lock()

    def step(self, step_s, records):
        """Waits for the end of the minibatch and notes it."""
        with self._lock:
            now = time.time()
            due = self._last + step_s
            if now > due + step_s:
                due = now + step_s
            time.sleep(max(0.0, due - now))
            self._last = max(due, now)
            self._note(records)

    def _note(self, records):
        if self._file is None:
            names = ("ELASTICDL_JOB_ID", "ELASTICDL_INDEX", "ELASTICDL_INCARNATION")
            name = ".".join([*(os.environ.get(one, "x") for one in names), str(os.getpid())])
            self._file = (Path(os.environ["EXPERIMENT_STEPS"]) / f"{name}.csv").open("a")
        self._file.write(f"{time.time():.6f},{int(records)}\n")
        self._file.flush()


_PACE = Pace()


@tf.keras.utils.register_keras_serializable("simulated")
class Waiting(tf.keras.layers.Layer):
    """Passes its input on after the minibatch's time has passed, in training only."""

    def __init__(self, step_s, **options):
        super().__init__(**options)
        self.step_s = step_s

    def call(self, inputs, training=False):
        """Waits once a minibatch."""
        if not training:
            return inputs

        def wait(records):
            _PACE.step(self.step_s, records)
            return tf.constant(0.0).numpy()

        nothing = tf.numpy_function(wait, [tf.shape(inputs)[0]], tf.float32)
        nothing.set_shape([])
        return inputs + tf.stop_gradient(nothing)

    def get_config(self):
        """The arguments to build it again."""
        return {**super().get_config(), "step_s": self.step_s}


def forward(step_s=0.25):
    """A linear model of one number."""
    inputs = tf.keras.Input((1,), name="x")
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(Waiting(step_s)(inputs)))


def loss(labels, predictions):
    """Mean square."""
    return tf.reduce_mean(tf.square(tf.reshape(labels, (-1, 1)) - predictions))


def optimizer(lr=0.01):
    """Plain SGD."""
    return tf.keras.optimizers.SGD(lr)


def feed(dataset, mode, metadata):
    """Numbers as text to (x, 2 x)."""

    def parse(record):
        x = tf.reshape(tf.strings.to_number(record), (1,))
        return x if mode == "prediction" else (x, 2.0 * x[0])

    return dataset.map(parse)


class NumberReader:
    """As many records as the data's name says, made on the spot."""

    def __init__(self, data_origin):
        self._records = int(str(data_origin).rsplit("-", 1)[1])

    def create_shards(self):
        """All records: name to (first, count)."""
        return {"numbers": (0, self._records)}

    def read_records(self, task):
        """Yields the records of a task."""
        for index in range(task.start, task.end):
            yield str((index % 100) / 100).encode()


def custom_data_reader(data_origin, records_per_task=None, **params):
    """The reader of ``numbers-<count>``."""
    return NumberReader(data_origin)
