"""Rows about callbacks: ours, those of Keras that are translated, and those that are refused."""

from __future__ import annotations

from tests.differential.data import validated
from tests.differential.driver import Row
from tests.differential.zoo import module

OURS = (
    "from elasticdl.callbacks import EarlyStopping, KeepBest, LearningRateScheduler, MaxStepsStopping, "
    "SavedModelExporter"
)
METRIC = "def eval_metrics_fn():\n    return {'error': keras.metrics.MeanAbsoluteError()}"


def ours(name: str, callback: str, *parts: str, **more: object) -> Row:
    """A row with a callback of ``elasticdl.callbacks``."""
    source = module(OURS, *parts, f"def callbacks():\n    return [{callback}]")
    return Row(name, source, "callbacks", **more)  # type: ignore[arg-type]


def theirs(name: str, callback: str, *parts: str, **more: object) -> Row:
    """A row with a callback of Keras."""
    source = module(*parts, f"def callbacks():\n    return [keras.callbacks.{callback}]")
    return Row(name, source, "callbacks", **more)  # type: ignore[arg-type]


def refused(name: str, callback: str, words: str) -> Row:
    """A row with a callback of Keras that nobody would act upon."""
    return theirs(name, callback, refused=words, data=validated)


LONG = {"num_epochs": 8}

ROWS = [
    ours("scheduler", "LearningRateScheduler(lambda version: 0.1 / (1 + version))"),
    ours("scheduler_zero", "LearningRateScheduler(lambda version: 0.1 if version < 5 else 0.0)"),
    ours(
        "scheduler_adam",
        "LearningRateScheduler(lambda version: 0.01 * (version % 3))",
        "def optimizer():\n    return keras.optimizers.Adam(0.5)",
    ),
    ours("max_steps", "MaxStepsStopping(5)", two=""),
    ours("max_steps_later", "MaxStepsStopping(9)", two=""),
    ours("early_stopping", "EarlyStopping(patience=2, min_delta=1.0)", spec=LONG, data=validated, two=""),
    ours(
        "early_stopping_metric",
        "EarlyStopping('error', patience=1, mode='max')",
        METRIC,
        spec=LONG,
        data=validated,
        two="",
    ),
    # Tasks have three minibatches: what falls due within one would be evaluated at its end.
    ours(
        "early_stopping_steps",
        "EarlyStopping(patience=2, min_delta=1.0)",
        spec={"evaluation_steps": 3, **LONG},
        data=validated,
        two="",
    ),
    ours(
        "early_stopping_steps_in_tasks",
        "EarlyStopping(patience=2, min_delta=1.0)",
        spec={"evaluation_steps": 4, "num_minibatches_per_task": 1, **LONG},
        data=validated,
        two="",
    ),
    ours(
        "early_stopping_unknown",
        "EarlyStopping('no such metric', patience=1)",
        data=validated,
        refused="no such metric",
    ),
    ours("early_stopping_blind", "EarlyStopping(patience=1)", refused="EarlyStopping"),
    ours("saved_model_exporter", "SavedModelExporter()", served=True),
    ours("no_callbacks", ""),
    ours(
        "two_schedulers",
        "LearningRateScheduler(lambda v: 0.1), LearningRateScheduler(lambda v: 0.2)",
        refused="LearningRateScheduler",
    ),
    ours(
        "failing_schedule",
        "LearningRateScheduler(lambda version: 1 / 0)",
        refused="the learning rate schedule raised ZeroDivisionError",
    ),
    ours("callbacks_string", "'early'", refused="early"),
    theirs(
        "keras_early_stopping",
        "EarlyStopping('val_loss', patience=2, min_delta=1.0)",
        spec=LONG,
        data=validated,
        two="",
    ),
    theirs(
        "keras_early_stopping_metric",
        "EarlyStopping('val_error', patience=1, mode='max')",
        METRIC,
        spec=LONG,
        data=validated,
        two="",
    ),
    theirs(
        "keras_early_stopping_training",
        "EarlyStopping('loss')",
        data=validated,
        refused="watches 'loss', a metric of training",
    ),
    theirs("terminate_on_nan", "TerminateOnNaN()"),
    theirs("history", "History(), keras.callbacks.ProgbarLogger()"),
    refused("reduce_on_plateau", "ReduceLROnPlateau()", "ReduceLROnPlateau"),
    # With two workers the local run has half of the epochs, by which the rate goes.
    theirs("keras_scheduler", "LearningRateScheduler(lambda epoch, rate: rate * 0.5)", two=""),
    refused("lambda_callback", "LambdaCallback()", "LambdaCallback"),
    refused("model_checkpoint", "ModelCheckpoint('/tmp/no.keras')", "ModelCheckpoint"),
    refused(
        "model_checkpoint_weights",
        "ModelCheckpoint('/tmp/no.weights.h5', 'val_loss', save_best_only=True, save_weights_only=True)",
        "save_weights_only",
    ),
    ours("keep_best_unknown", "KeepBest('no such metric')", data=validated, refused="no such metric"),
    ours("keep_best_blind", "KeepBest()", refused="validation data"),
    refused("backup", "BackupAndRestore('/tmp/no')", "BackupAndRestore"),
    refused("csv_logger", "CSVLogger('/tmp/no.csv')", "CSVLogger"),
    refused("tensor_board", "TensorBoard('/tmp/no')", "TensorBoard"),
    refused("swap_ema", "SwapEMAWeights()", "SwapEMAWeights"),
    refused("callback_base", "Callback()", "Callback"),
    Row(
        "own_callback",
        module(
            """
            class Mine(keras.callbacks.Callback):
                def on_epoch_end(self, epoch, logs=None):
                    raise RuntimeError("never called")


            def callbacks():
                return [Mine()]
            """
        ),
        "callbacks",
        refused="Mine",
    ),
]
