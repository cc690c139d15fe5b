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
    row("synchronous_tolerant", use_async=False, sync_version_tolerance=2, _two="close", _data=validated),
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
    row("skips_nan", NAN, on_nan="skip", _two=""),
    row("skips_nan_synchronous", NAN, ADAM, on_nan="skip", use_async=False, _two=""),
    row("skips_nan_but_all", NAN.replace("1.2", "-100.0"), on_nan="skip", num_epochs=20, _refused="in a row"),
    row("max_steps_far", max_steps=1000, num_epochs=4),
    row("max_steps_at_the_end", max_steps=12, _two=""),
    row("shuffled_in_blocks", shuffle=True, shuffle_block=4, num_epochs=3, _two=""),
    row("shuffled_in_one_block", shuffle=True, shuffle_block=1000, _two=""),
    row("saved_model_only", export_formats="saved_model", _served=True),
    row("both_exports", export_formats="keras,saved_model", _served=True),
    row("no_exports", export_formats=""),
    row("three_servers", ADAM, num_ps=3),
    row("five_servers_for_few_tensors", num_ps=5),
    row("logs_every_step", log_loss_steps=1),
    # A checkpoint closes the round of two workers with the gradients that it has.
    row("checkpoints", ADAM, checkpoint_steps=2, keep_checkpoint_max=1, _two=""),
    row("checkpoints_synchronous", ADAM, checkpoint_steps=3, use_async=False, _two=""),
    row("delay_compensation", delay_compensation=30.0, _two="close", _data=validated),
    row("minibatches_of_one", minibatch_size=1, num_minibatches_per_task=5, _two=""),
    row("task_of_one_minibatch", num_minibatches_per_task=1),
    row("task_of_all", num_minibatches_per_task=100, _two=""),
]
