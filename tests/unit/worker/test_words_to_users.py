"""What a local run says of modules that cannot work: what is wrong and what to do, best before the first record."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.tensorflow.export.model_files import _trying
from elasticdl_worker.user_code import load_model_module
from elasticdl_worker.user_code.fixes import suggest_fix
from tests.differential.data import columns
from tests.differential.zoo import module

pytestmark = pytest.mark.unit
Run = Callable[..., list[dict[str, Any]]]
ROWS_OF_IDS = """
feed = give("ids")


def forward():
    ids = keras.Input((3,), name="ids", dtype="int64")
    return keras.Model(ids, layers.Dense(1)(layers.GlobalAveragePooling1D()(layers.Embedding(50, 2)(ids))))
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Trains a module in this process, or predicts with it; the export goes to ``out``."""

    def go(*parts: str, before: str = "", **fields: Any) -> list[dict[str, Any]]:
        zoo = tmp_path / "zoo"
        zoo.mkdir(exist_ok=True)
        (zoo / f"{tmp_path.name}.py").write_text(before + module(*parts))
        base = {
            "model_zoo": str(zoo),
            "model_def": f"{tmp_path.name}.forward",
            "minibatch_size": 8,
            "shuffle": False,
            "export_formats": "",
            **columns(tmp_path, False),
        }
        events: list[dict[str, Any]] = []
        run_local(JobSpec.from_mapping(base | fields), tmp_path / "out", events.append)
        return events

    return go


COMPILED = """
import os


@keras.saving.register_keras_serializable()
def odd_loss(labels, predictions):
    return tf.reduce_mean(tf.abs(labels - predictions))


_made = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
_made.compile("adam", odd_loss)
_path = os.path.join(os.path.dirname(__file__), "made.keras")
_made.save(_path)
keras.saving.get_custom_objects().pop("Custom>odd_loss")


def forward():
    return keras.models.load_model(_path)
"""
UNEVEN = (
    ROWS_OF_IDS.replace("(3,)", "(None,)")
    + """

def feed(dataset, mode, metadata):
    def some(record):
        parsed = parse(record)
        return parsed["ids"][: 1 + tf.cast(parsed["c"], tf.int32)], parsed["y"]

    return dataset.map(some)
"""
)
OF_NO_LABEL = 'def feed(dataset, mode, metadata):\n    return dataset.map(lambda record: (parse(record)["x"], None))'
WITH_WEIGHTS = """
def feed(dataset, mode, metadata):
    return dataset.map(parse).map(lambda record: (record["x"], record["y"], 2.0 * record["y"]))
"""
STRAY = """
STRAY = tf.Variable(2.0, trainable=False)


def forward():
    x = keras.Input((4,), batch_size=8)
    h = layers.Lambda(lambda one: one * STRAY)(x)
    return keras.Model(x, layers.Dense(1)(layers.LSTM(3, stateful=True)(layers.Reshape((4, 1))(h))))
"""
OF_UNEVEN_LISTS = """
def eval_metrics_fn():
    return {"odd": lambda labels, predictions: [labels[:, 0], labels[1:, 0]]}
"""
WRONG_KEY = 'def loss(labels, predictions):\n    return tf.reduce_mean({"a": labels}["age"] - predictions)'
WRONG_SHAPE = "def loss(labels, predictions):\n    return tf.reduce_mean(tf.matmul(labels, predictions))"


@pytest.mark.parametrize(
    ("part", "said", "fix"),
    [
        pytest.param(COMPILED, "Could not locate function", "compile=False", id="a-compiled-file"),
        pytest.param(UNEVEN, "raised InvalidArgumentError", "tf.pad", id="records-of-different-lengths"),
        pytest.param(
            "def feed(dataset, mode, metadata):\n    return open('my_words.txt')",
            "No such file",
            "Path(__file__).parent / 'my_words.txt'",
            id="a-relative-path",
        ),
        pytest.param(
            "forward = keras.Sequential([keras.Input((4,)), layers.Dense(1)])",
            "is a model, made when the file is imported, not its maker",
            "def forward(): return ...",
            id="a-model-in-place-of-a-function",
        ),
        pytest.param(OF_NO_LABEL, "None", "let feed give (features, labels)", id="no-labels"),
        pytest.param(WRONG_SHAPE, "a training step raised", "check the shapes of", id="shapes-that-do-not-fit"),
        pytest.param(WITH_WEIGHTS, "gives a tuple of 3", 'as in (features, {"y": labels', id="weights-beside-labels"),
        pytest.param(STRAY, "the variable STRAY of", "add_weight", id="a-variable-beside-a-stateful-layer"),
        pytest.param(OF_UNEVEN_LISTS, "arrays of different shapes, [8], [7]", "one value", id="an-uneven-metric"),
        pytest.param(
            WRONG_KEY, "a training step raised KeyError: 'age'", "correct a training step", id="a-wrong-key"
        ),
    ],
)
def test_a_module_that_cannot_work_is_told_what_to_do(run: Run, part: str, said: str, fix: str) -> None:
    with pytest.raises(UserCodeError) as caught:
        run(part)
    assert said in caught.value.message
    assert fix in caught.value.fix


def test_a_loss_that_takes_no_labels_needs_none(run: Run) -> None:
    """It was refused, though it had trained."""
    loss = "def loss(labels, predictions):\n    return tf.reduce_mean(predictions**2)"
    assert run(OF_NO_LABEL, loss)[-1]["records"] == 48


@pytest.mark.parametrize("name", [b"words.txt", "s3://bucket/words.txt", 7])
def test_advice_on_a_missing_file_is_for_relative_paths(name: Any) -> None:
    fix = suggest_fix(FileNotFoundError(2, "No such file or directory", name))
    assert fix.endswith("Path(__file__).parent / 'words.txt'") if name == b"words.txt" else fix == ""


def test_a_model_whose_weights_cannot_be_asked_for_yet_is_one(tmp_path: Path) -> None:
    """Keras 2 raised in place of the refusal."""
    (tmp_path / "unbuilt.py").write_text(
        "class Net:\n    @property\n    def trainable_weights(self):\n        raise ValueError\n\n\nforward = Net()\n"
    )
    spec = {"model_zoo": str(tmp_path), "model_def": "unbuilt.forward", "training_data": "x"}
    with pytest.raises(UserCodeError, match="is a model, made when the file is imported"):
        load_model_module(JobSpec.from_mapping(spec), tmp_path)


def test_a_full_disk_refuses_no_model() -> None:
    """The trial is written elsewhere than the export: such a disk is nothing that the user's model does."""
    with _trying("saved_model", "a SavedModel"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_eager_execution_that_was_switched_off_is_named(run: Run) -> None:
    """It was a traceback of ours."""
    try:
        with pytest.raises(UserCodeError, match="switches eager execution off"):
            run(before="import tensorflow as tf\n\ntf.compat.v1.disable_eager_execution()\n")
    finally:
        tf.compat.v1.enable_eager_execution()


UNTRACKED = """
KEYS = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([1.0, 2.0]))
TABLE = tf.lookup.StaticHashTable(KEYS, 0.0)


def forward():
    x = keras.Input((4,), name="x")
    found = layers.Lambda(lambda one: TABLE.lookup(tf.cast(one, tf.int64)), output_shape=(4,))(x)
    return keras.Model(x, layers.Dense(1)(found))
"""


def test_what_cannot_be_exported_is_refused_before_the_first_record(run: Run, tmp_path: Path) -> None:
    """It trained to its end, and then kept nothing."""
    seen = tmp_path / "seen"
    noting = f"""
def loss(labels, predictions):
    open({str(seen)!r}, "w").close()
    return tf.reduce_mean(tf.square(labels - predictions))
"""
    with pytest.raises(UserCodeError, match="cannot be written as a SavedModel") as caught:
        run(UNTRACKED, noting, export_formats="saved_model")
    assert "leave saved_model out of --export_formats" in caught.value.fix
    assert not seen.exists()
    run(UNTRACKED, noting)
    assert seen.exists()


def test_the_note_says_how_own_layers_and_functions_are_loaded(run: Run, tmp_path: Path) -> None:
    """The line that it gave raised for both."""
    run(
        """
        class Twice(layers.Layer):
            def call(self, inputs):
                return 2.0 * inputs


        def forward():
            x = keras.Input((4,), name="x")
            return keras.Model(x, layers.Dense(1)(Twice()(layers.Lambda(lambda one: one + 1.0)(x))))
        """,
        export_formats="keras",
    )
    import keras
    import numpy as np

    line = json.loads((tmp_path / "out" / "README.json").read_text())["formats"]["keras"]
    assert line.endswith("custom_objects={'Twice': Twice}, safe_mode=False)")
    twice = type("Twice", (keras.layers.Layer,), {"call": lambda layer, inputs: 2.0 * inputs})
    call = line.partition(": ")[2].replace("'model.keras'", repr(str(tmp_path / "out" / "model.keras")))
    loaded = eval(call, {"keras": keras, "Twice": twice})  # noqa: S307 - as a user pastes it
    assert np.shape(loaded(np.zeros((2, 4), np.float32))) == (2, 1)


OUTPUTS = """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = layers.Dense(1)

    def call(self, inputs):
        made = self.out(inputs)
        return GIVEN


forward = Net


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - tf.nest.flatten(predictions)[0]))
"""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param('{"a": made, "b": tf.reduce_mean(made)}', "the output b is one number for 8 records", id="0-d"),
        pytest.param('{"a": made, "b": {"c": made}}', "the output b is of the type dict for 8 records", id="nested"),
        pytest.param("(made, tf.stack([made] * 3))", "the output output_1 has the shape [3, 8, 1]", id="time-first"),
        pytest.param(
            '{"a": made, "b": tf.matmul(made, made, transpose_b=True)}',
            "the width of the output b follows the minibatch",
            id="as-wide-as-the-minibatch",
        ),
    ],
)
def test_outputs_that_are_no_predictions_are_refused_before_the_first_task(
    run: Run, tmp_path: Path, given: str, said: str
) -> None:
    """An npz held such an output beside rows of records; the others ended in errors of numpy."""
    net, kept = OUTPUTS.replace("GIVEN", given), {"checkpoint_dir": str(tmp_path / "kept"), "checkpoint_steps": 3}
    run(net, **kept)
    data = {"type": "prediction", "training_data": "", "prediction_data": str(tmp_path / "train.csv")}
    with pytest.raises(UserCodeError) as caught:
        run(net, **data, checkpoint_dir_for_init=str(tmp_path / "kept"))
    assert said in caught.value.message
    assert not list((tmp_path / "out").glob("*.npz"))


@pytest.mark.slow
def test_the_same_run_exports_the_same_bytes(tmp_path: Path) -> None:
    """Variables stood in a SavedModel in the order of their addresses."""
    (tmp_path / "net.py").write_text(module())
    spec = {"model_zoo": str(tmp_path), "model_def": "net.forward", "export_formats": "saved_model"}
    (tmp_path / "spec.json").write_text(json.dumps(spec | dict(columns(tmp_path, False))))
    found = []
    for name in ("one", "two"):
        command = [sys.executable, "-m", "elasticdl_worker", "local", "--spec", str(tmp_path / "spec.json")]
        subprocess.run([*command, "--output", str(tmp_path / name)], check=True, timeout=120, capture_output=True)
        files = sorted(path for path in (tmp_path / name / "saved_model").rglob("*") if path.is_file())
        found.append({str(path.relative_to(tmp_path / name)): path.read_bytes() for path in files})
    assert len(found[0]) > 3
    assert found[0].keys() == found[1].keys()
    assert [name for name, data in found[0].items() if found[1][name] != data] == []
