"""A grammar of small models and jobs: rows that nobody wrote.

What can be drawn is in tables by name, so that a test can tell what of the product's own tables is missing here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from elasticdl_core.contract.optimizers import SUPPORTED
from tests.differential.data import columns, recordio_files, several_files, tfrecord_files
from tests.differential.driver import Row
from tests.differential.rows.callbacks import OURS
from tests.differential.rows.readers import EXAMPLE
from tests.differential.zoo import module

Draw = Callable[[st.SearchStrategy[Any]], Any]
RATES = {"SGD": 0.05, "Adagrad": 0.1, "Adadelta": 1.0, "Ftrl": 0.1}
"""Learning rates where 0.01 would not do."""
ADAPTIVE_TOLERANCE = 5e-5
"""Optimizers that divide by the size of the gradient make the rounding of a small one as large as an update."""

OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "momentum": (0.5, 0.9),
    "nesterov": (True, False),
    "beta_1": (0.8, 0.95),
    "beta_2": (0.9, 0.99),
    "epsilon": (1e-3, 1e-5),
    "amsgrad": (True, False),
    "rho": (0.8, 0.95),
    "centered": (True, False),
    "initial_accumulator_value": (0.2, 1.0),
    "learning_rate_power": (-0.4, -0.6),
    "l1_regularization_strength": (0.001,),
    "l2_regularization_strength": (0.01,),
    "l2_shrinkage_regularization_strength": (0.01,),
    "beta": (0.1,),
    "weight_decay": (0.01, 0.1),
    "clipnorm": (0.1,),
    "clipvalue": (0.05,),
    "global_clipnorm": (0.1,),
}
"""Options of optimizers, and values other than the usual ones."""
CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
SCHEDULES = (
    "ExponentialDecay({rate}, 3, 0.5)",
    "PiecewiseConstantDecay([3, 7], [{rate}, {rate} / 2, 0.0])",
    "PolynomialDecay({rate}, 8, end_learning_rate=0.0)",
    "CosineDecay({rate}, 8)",
    "CosineDecayRestarts({rate}, 4)",
    "InverseTimeDecay({rate}, 3, 0.5)",
)
TO_ZERO = SCHEDULES[1:4]
"""Schedules that reach 0 within a job."""
DIVIDES = "Ftrl"
"""It divides by the learning rate, and so all ways refuse 0."""
CALLBACKS: Mapping[str, str] = {
    "": "",
    "elasticdl.callbacks.LearningRateScheduler": "LearningRateScheduler(lambda version: 0.01 * (version % 3))",
    "elasticdl.callbacks.MaxStepsStopping": "MaxStepsStopping(5)",
    "elasticdl.callbacks.EarlyStopping": "EarlyStopping(patience=1, min_delta=1.0)",
    "elasticdl.callbacks.KeepBest": "KeepBest()",
    "elasticdl.callbacks.SavedModelExporter": "SavedModelExporter()",
    "EarlyStopping": "keras.callbacks.EarlyStopping('val_loss', patience=1, min_delta=1.0)",
    "ModelCheckpoint": "keras.callbacks.ModelCheckpoint('/tmp/no.keras', 'val_loss', save_best_only=True)",
    "LearningRateScheduler": "keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)",
    "TerminateOnNaN": "keras.callbacks.TerminateOnNaN()",
    "History": "keras.callbacks.History()",
}
"""Callbacks that do something, by their names in the table of what is honoured."""
COUNTING = ("MaxStepsStopping", "EarlyStopping", "keras.callbacks.LearningRateScheduler")
"""Callbacks that count updates or epochs, of which two synchronous workers have half."""
RANDOM = "dropped out"
BLOCKS: Mapping[str, tuple[str, ...]] = {
    "dense": ('layers.Dense(5, activation="tanh")',),
    "gelu": ('layers.Dense(4, activation="gelu")',),
    "regularised": ('layers.Dense(4, kernel_regularizer="l2", bias_regularizer="l1")',),
    "constrained": ("layers.Dense(4, kernel_constraint=keras.constraints.MaxNorm(0.5))",),
    "not negative": ("layers.Dense(4, bias_constraint=keras.constraints.NonNeg())",),
    "normalised": ("layers.Dense(5)", "layers.LayerNormalization()"),
    "batch normalised": ("layers.Dense(5, use_bias=False)", "layers.BatchNormalization(momentum=0.9)"),
    "convolution": ("layers.Dense(8)", "layers.Reshape((4, 2))", "layers.Conv1D(3, 2)", "layers.Flatten()"),
    "pooled": ("layers.Dense(8)", "layers.Reshape((4, 2))", "layers.AveragePooling1D(2)", "layers.Flatten()"),
    "recurrent": ("layers.Dense(6)", "layers.Reshape((3, 2))", "layers.LSTM(3)"),
    "gated": ("layers.Dense(6)", "layers.Reshape((3, 2))", "layers.GRU(2)"),
    "frozen": ("layers.Dense(4, trainable=False)",),
    RANDOM: ("layers.Dense(6)", "layers.Dropout(0.2)"),
}
"""Layers from a vector to a vector."""
FEATURES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "x": ("(4,)", "None", ()),
    "ids": ("(3,)", '"int64"', ('layers.Embedding(50, 3, embeddings_initializer="ones")', "layers.Flatten()")),
    "word": ("(1,)", '"string"', ('layers.StringLookup(vocabulary=["red", "blue"], output_mode="one_hot")',)),
}
"""Columns of the data: their shape, their dtype, and the layers that make a vector of them."""
STYLES: Mapping[str, str] = {
    "functional": """
        def forward():
            h = i = keras.Input({shape}, dtype={dtype})
            for layer in [{layers}]:
                h = layer(h)
            return keras.Model(i, h)
    """,
    "sequential": """
        def forward():
            return keras.Sequential([keras.Input({shape}, dtype={dtype}), {layers}])
    """,
    "subclass": """
        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.parts = [{layers}]

            def call(self, inputs, training=False):
                for part in self.parts:
                    inputs = part(inputs)
                return inputs


        def forward():
            return Net()
    """,
    "functional subclass": """
        class Net(keras.Model):
            def __init__(self, width=1):
                h = i = keras.Input({shape}, dtype={dtype})
                for layer in [{layers}]:
                    h = layer(h)
                super().__init__(i, h)


        def forward():
            return Net()
    """,
}
LOSSES: Mapping[str, tuple[str, ...]] = {
    "y": (
        "loss = keras.losses.MeanSquaredError()",
        "loss = keras.losses.Huber(0.3)",
        "loss = keras.losses.LogCosh()",
        "def loss(labels, predictions):\n    return tf.reduce_mean(tf.square(labels - predictions))",
        "def loss(labels, predictions):\n    return tf.reduce_mean(tf.square(labels - predictions), -1)",
    ),
    "c": (
        "loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
        "def loss(labels, predictions):\n"
        "    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, predictions)",
    ),
}
"""By the label that they are for."""
METRICS: Mapping[str, tuple[str, ...]] = {
    "y": (
        '"mae": keras.metrics.MeanAbsoluteError()',
        '"mse": "mean_squared_error"',
        '"rmse": keras.metrics.RootMeanSquaredError()',
        '"gap": lambda labels, predictions: tf.abs(labels - predictions)',
        '"mean": lambda labels, predictions: tf.reduce_mean(tf.abs(labels - predictions))',
    ),
    "c": (
        '"accuracy": keras.metrics.SparseCategoricalAccuracy()',
        '"top": keras.metrics.SparseTopKCategoricalAccuracy(2)',
        '"ce": keras.metrics.SparseCategoricalCrossentropy(from_logits=True)',
    ),
}
READERS: Mapping[str, Callable[[Path, bool], Mapping[str, Any]]] = {
    "csv": columns,
    "csv files": several_files,
    "tfrecord": tfrecord_files,
    "recordio": recordio_files,
}
FIELDS: Mapping[str, tuple[Any, ...]] = {
    "minibatch_size": (8, 12, 5, 100),
    "num_minibatches_per_task": (3, 1, 2),
    "num_epochs": (2, 4, 1),
    "num_ps": (1, 2, 3),
    "seed": (3, 77),
    "use_async": (True, False),
    "shuffle": (False, True),
    "shuffle_block": (0, 4),
    "max_steps": (0, 5),
    "evaluation_steps": (0, 3),
    "get_model_steps": (1, 3),
    "embedding_threshold_bytes": (2**21, 0),
    "checkpoint_steps": (0, 2),
    "log_loss_steps": (100, 1),
    "xla": ("auto", "off"),
    "on_nan": ("fail", "skip"),
}
"""Fields of the job, the usual value first."""
PAIRS: Mapping[str, Any] = {
    "minibatch_size": 8,
    "num_epochs": 2,
    "max_steps": 0,
    "evaluation_steps": 0,
    "get_model_steps": 1,
    "shuffle": False,
    "checkpoint_steps": 0,  # a checkpoint closes the round, which then has fewer gradients
}
"""Fields of jobs in which two equal minibatches make each update, so that two workers are as exact as one."""


@st.composite
def generated_rows(draw: Draw) -> Row:
    """A row of any kind."""
    reader = draw(st.sampled_from(list(READERS)))
    records = reader in ("tfrecord", "recordio")
    features = "x" if records else draw(st.sampled_from(list(FEATURES)))
    label = "y" if records else draw(st.sampled_from(list(LOSSES)))
    pairs = draw(st.booleans())
    blocks = draw(st.lists(st.sampled_from([name for name in BLOCKS if not pairs or name != RANDOM]), max_size=2))
    kind = draw(st.sampled_from(SUPPORTED.split()))
    options = _options(draw, kind)
    callback = draw(st.sampled_from([one for one in CALLBACKS.values() if not pairs or not _counts(one)]))
    if kind == DIVIDES:
        callback = callback.replace("(version % 3)", "(1 + version % 3)")
    spec = _spec(draw, blocks, callback, pairs=pairs)
    # Rows that are not in a minibatch move on under Keras' momentum and decay, and stay on parameter servers.
    few = features == "ids" and spec["embedding_threshold_bytes"] == 0 and (kind, options) != ("SGD", {})
    if few and spec["minibatch_size"] < 8:
        spec["minibatch_size"] = 8
    parts = [
        EXAMPLE if records else "",
        _feed(features, label, few=few),
        _model(draw, features, label, blocks, few=few),
        draw(st.sampled_from(LOSSES[label])),
        _optimizer(draw, kind, options, callback),
        _metrics(draw, label),
        OURS,
        f"def callbacks():\n    return [{callback}]",
    ]
    return Row(
        "generated",
        module(*(part for part in parts if part)),
        "generated",
        spec=spec,
        data=partial(_data, READERS[reader]),
        one="form" if RANDOM in blocks or spec["get_model_steps"] > 1 else "equal",
        two=_verdict_on_two(spec, callback, options, pairs=pairs),
        tolerance=1e-6 if kind == "SGD" else ADAPTIVE_TOLERANCE,
    )


def _options(draw: Draw, kind: str) -> dict[str, Any]:
    import keras

    taken = [name for name in inspect.signature(getattr(keras.optimizers, kind)).parameters if name in OPTIONS]
    chosen = draw(st.lists(st.sampled_from(taken), unique=True, max_size=3))
    clipping = [name for name in chosen if name in CLIPPING][1:]
    return {name: draw(st.sampled_from(OPTIONS[name])) for name in chosen if name not in clipping}


def _spec(draw: Draw, blocks: list[str], callback: str, *, pairs: bool) -> dict[str, Any]:
    spec = {name: draw(st.sampled_from(values)) for name, values in FIELDS.items()} | (PAIRS if pairs else {})
    if "batch normalised" in blocks and spec["minibatch_size"] == 5:
        spec["minibatch_size"] = 12  # a minibatch of few has no variance to speak of
    if "TerminateOnNaN" in callback:
        spec["on_nan"] = "fail"
    if any(name in callback for name in ("EarlyStopping", "MaxSteps")):
        spec["max_steps"] = 0
    if spec["evaluation_steps"]:
        spec["num_minibatches_per_task"] = 1  # what falls due within a task would be evaluated at its end
    # A group of local steps is one update of the job, which is what it counts.
    if not spec["use_async"] or _counts_updates(spec, callback):
        spec["get_model_steps"] = 1
    return spec


def _verdict_on_two(spec: Mapping[str, Any], callback: str, options: Mapping[str, Any], *, pairs: bool) -> str:
    if (pairs or not spec["use_async"]) and any(name in options for name in ("clipnorm", "global_clipnorm")):
        return ""  # of a round each of two servers has only a part: refused
    return "equal" if pairs else "" if _counts_updates(spec, callback) else "form"


def _counts_updates(spec: Mapping[str, Any], callback: str) -> bool:
    """Whether what happens depends on how many updates or minibatches of one worker there were."""
    return bool(spec["max_steps"] or spec["evaluation_steps"]) or _counts(callback)


def _counts(callback: str) -> bool:
    return any(name in callback for name in COUNTING)


def _feed(features: str, label: str, *, few: bool) -> str:
    given = f'give("{features}", "{label}")'
    if not few:
        return f"feed = {given}"
    return (
        "def feed(dataset, mode, metadata):\n"
        f"    return {given}(dataset, mode, metadata).map(lambda ids, label: (ids % 3, label))"
    )


def _model(draw: Draw, features: str, label: str, blocks: list[str], *, few: bool) -> str:
    shape, dtype, first = FEATURES[features]
    if few:
        first = tuple(call.replace("Embedding(50,", "Embedding(3,") for call in first)
    layers = [*first, *(call for block in blocks for call in BLOCKS[block])]
    layers.append("layers.Dense(1)" if label == "y" else "layers.Dense(3)")
    style = STYLES[draw(st.sampled_from(list(STYLES)))]
    return inspect.cleandoc(style).format(shape=shape, dtype=dtype, layers=", ".join(layers))


def _optimizer(draw: Draw, kind: str, options: Mapping[str, Any], callback: str) -> str:
    rate = str(RATES.get(kind, 0.01))
    # A callback that sets the rate takes the place of a schedule.
    if "LearningRateScheduler" not in callback and draw(st.booleans()):
        schedules = [one for one in SCHEDULES if kind != DIVIDES or one not in TO_ZERO]
        rate = f"keras.optimizers.schedules.{draw(st.sampled_from(schedules)).format(rate=rate)}"
    given = ", ".join([rate, *(f"{name}={value}" for name, value in options.items())])
    return f"def optimizer():\n    return keras.optimizers.{kind}({given})"


def _metrics(draw: Draw, label: str) -> str:
    chosen = draw(st.lists(st.sampled_from(METRICS[label]), unique=True, max_size=3))
    return f"def eval_metrics_fn():\n    return {{{', '.join(chosen)}}}" if chosen else ""


def _data(reader: Callable[[Path, bool], Mapping[str, Any]], place: Path, alike: bool) -> Mapping[str, Any]:
    fields = reader(place, alike)
    return {**fields, "validation_data": fields["training_data"]}
