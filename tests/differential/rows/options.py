"""Rows about the job's options that touch training."""

from __future__ import annotations

from tests.differential.data import validated
from tests.differential.driver import Row
from tests.differential.zoo import module

NAN = """
def feed(dataset, mode, metadata):
    def pick(record):
        parsed = parse(record)
        label = tf.where(parsed["x"][0] > 1.2, float("nan"), parsed["y"])
        return parsed["x"] if mode == "prediction" else (parsed["x"], label)

    return dataset.map(pick)
"""
ADAM = "def optimizer():\n    return keras.optimizers.Adam(0.01)"


def row(name: str, *parts: str, **spec: object) -> Row:
    """A row with options of the job; those with an underscore in front are the row's own."""
    own = {key[1:]: spec.pop(key) for key in [key for key in spec if key.startswith("_")]}
    return Row(name, module(*parts), "options", spec=spec, **own)  # type: ignore[arg-type]


ROWS = [
    row("synchronous", use_async=False),
    row("synchronous_adam", ADAM, use_async=False),
    row("synchronous_tolerant", use_async=False, sync_version_tolerance=2),
    row("asynchronous", ADAM, _one="equal", _two="close", _data=validated),
    row("staleness_modulation", lr_staleness_modulation=True, _two="close", _data=validated),
    row("groups_of_sgd", get_model_steps=3, _two="close", _data=validated),
    row("overlap", max_staleness=2, _one="close", _two="close", _data=validated),
    row("many_epochs", num_epochs=6),
    row("one_epoch", num_epochs=1, _two=""),
    row("max_steps_flag", max_steps=5, _two=""),
    row("max_steps_of_many", max_steps=50, _two=""),
    row("other_seed_of_weights", seed=12345),
    row("xla_on", xla="on"),
    row("xla_off", xla="off"),
    row("keras_sees_nan", NAN, _refused="nan"),
]
