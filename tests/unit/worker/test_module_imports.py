"""What a module does when it is imported: the same in one process and on a cluster, and harmless to others."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.local import run_local
from elasticdl_worker.user_code import load_model_module
from tests.fakes.master import FakeMaster
from tests.fakes.parameters import MemoryParameters
from tests.unit.worker.test_contract import BASE, FEED
from tests.unit.worker.test_ps_training import add_training, work

pytestmark = pytest.mark.unit

MODULE_LEVEL = (
    BASE
    + """
from elasticdl.layers import Embedding as Open

SCALE = tf.constant(0.001)
WORDS = keras.layers.StringLookup(vocabulary=["0", "1"])
SHARED = keras.layers.Dense(4)
SMALL = keras.layers.Embedding(1000, 2)
ROWS = Open(3)

def layers_at_module_level(*more):
    ids = keras.Input((3,), dtype="int64")
    flat = keras.layers.Flatten()
    parts = [SHARED(keras.layers.Rescaling(0.001)(ids)), flat(SMALL(ids)), *(flat(layer(ids)) for layer in more)]
    joined = keras.layers.Dense(4)(keras.layers.Concatenate()(parts))
    return keras.Model(ids, keras.layers.Dense(1)(joined))

WHOLE = layers_at_module_level()

def rows_at_module_level():
    return layers_at_module_level(ROWS)

def model_at_module_level():
    return WHOLE

def feed(dataset, mode, metadata):
    def parse(columns):
        ids = tf.strings.to_number(columns[1:], tf.int64)
        label = tf.cast(WORDS(columns[0]) > 1, tf.float32) + 0.0 * SCALE
        return ids if mode == "prediction" else (ids, label)
    return dataset.map(parse)
"""
)


def write(folder: Path, **files: str) -> Path:
    for name, text in {"deepfm": FEED, **files}.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


async def on_servers(spec: Any, folder: Path) -> MemoryParameters:
    master, parameters = FakeMaster(spec, folder), MemoryParameters()
    await master.start()
    add_training(master, spec)
    await work(master, parameters)
    await master.stop()
    assert not master.failures
    return parameters


@pytest.mark.parametrize("model", ["layers_at_module_level", "model_at_module_level"])
@pytest.mark.rotates(turns=2)
async def test_what_is_made_at_module_level_trains_alike(model: str, make_spec: Any, tmp_path: Path) -> None:
    zoo = write(tmp_path / "zoo", net=MODULE_LEVEL)
    fields = {"use_async": False, "export_formats": "keras", "embedding_threshold_bytes": 0}
    spec = make_spec(model_zoo=str(zoo), model_def=f"net.{model}", **fields)
    await asyncio.to_thread(run_local, spec, tmp_path / "out", lambda event: None)
    exported = tf.keras.models.load_model(tmp_path / "out" / "model.keras", compile=False)
    trained = await on_servers(spec, tmp_path)
    assert not trained.rows, "what the module made when it was imported keeps its weights"
    for variable in exported.weights:
        np.testing.assert_allclose(trained.dense[variable.path], variable.numpy(), atol=1e-5)


async def test_rows_of_a_layer_at_module_level_are_trained(make_spec: Any, tmp_path: Path) -> None:
    zoo = write(tmp_path / "zoo", net=MODULE_LEVEL)
    spec = make_spec(model_zoo=str(zoo), model_def="net.rows_at_module_level", export_formats="saved_model")
    await asyncio.to_thread(run_local, spec, tmp_path / "out", lambda event: None)
    ids = set(np.loadtxt(spec.training_data, delimiter=",", dtype=np.int64)[:, 1:].ravel().tolist())
    assert set(np.load(tmp_path / "out" / "table-0.npz")["ids"].tolist()) == ids
    (rows,) = (await on_servers(spec, tmp_path)).rows.values()
    assert set(rows) == ids


@pytest.mark.parametrize("where", ["keras.config.set_dtype_policy", "keras.mixed_precision.set_global_policy"])
def test_a_policy_of_the_module_is_kept(where: str, make_spec: Any, tmp_path: Path) -> None:
    from elasticdl_worker.trainers.tensorflow.model.build import BuildOptions, build_model
    from elasticdl_worker.trainers.tensorflow.model.loading import load_module

    zoo = write(tmp_path / "zoo", net=BASE + f"\n{where}('mixed_bfloat16')\n")
    module = load_module(make_spec(model_zoo=str(zoo), model_def="net.Net"), zoo)
    for _ in range(2):
        model = build_model(module, tf.TensorSpec([None, 3], tf.int64), BuildOptions(None)).keras_model
        assert model.logit.compute_dtype == "bfloat16"
    tf.keras.backend.clear_session()


def test_names_of_layers_are_the_same_in_each_build(make_spec: Any, tmp_path: Path) -> None:
    from elasticdl_worker.trainers.tensorflow.model.build import BuildOptions, build_model
    from elasticdl_worker.trainers.tensorflow.model.loading import load_module

    zoo = write(tmp_path / "zoo", net=MODULE_LEVEL)
    names = []
    for _ in range(2):
        module = load_module(make_spec(model_zoo=str(zoo), model_def="net.layers_at_module_level"), zoo)
        for _ in range(2):
            prepared = build_model(module, tf.TensorSpec([None, 3], tf.int64), BuildOptions(0))
            names.append((sorted(prepared.trainable), sorted(prepared.tables)))
    assert all(one == names[0] for one in names)


def test_a_zoo_may_have_files_with_the_names_of_installed_packages(make_spec: Any, tmp_path: Path) -> None:
    zoo = write(
        tmp_path / "zoo", rich=BASE + "raise_if_imported_by_others = 1\n", structlog="raise SystemExit('shadowed')\n"
    )
    module = load_model_module(make_spec(model_zoo=str(zoo), model_def="rich.Net"), zoo)
    assert module.path == zoo / "rich.py"
    code = "import sys; sys.path[:0] = []; import rich, structlog; print(rich.__file__, structlog.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=zoo
    )
    assert str(zoo) not in done.stdout


def test_the_local_run_does_not_import_from_the_present_directory(make_spec: Any, tmp_path: Path) -> None:
    zoo = write(tmp_path / "zoo", rich=BASE, structlog="raise SystemExit('shadowed')\n")
    spec = make_spec(model_zoo=str(zoo), model_def="rich.Net", max_steps=1, export_formats="")
    run = "from elasticdl.cli.local import run_local; import json, sys; sys.exit(run_local(json.loads(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", run, json.dumps(spec.to_mapping())],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        cwd=zoo,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert done.returncode == 0, done.stderr
    assert "1 steps" in done.stdout


def test_an_import_that_could_mean_two_things_is_refused(make_spec: Any, tmp_path: Path) -> None:
    zoo = write(
        tmp_path / "zoo", net="from other import thing\n" + BASE, other="import rich\nthing = 1\n", rich="x = 1\n"
    )
    with pytest.raises(
        UserCodeError, match=r"imports 'rich', which is .*/zoo/rich.py as well as the installed"
    ) as caught:
        load_model_module(make_spec(model_zoo=str(zoo), model_def="net.Net"), zoo)
    assert "import it as zoo.rich" in caught.value.fix
    (zoo / "other.py").write_text("from zoo import rich\nthing = rich.x\n")
    load_model_module(make_spec(model_zoo=str(zoo), model_def="net.Net"), zoo)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("def optimizer():\n    return Mode.TRAINING\n", "from elasticdl import Mode"),
        ("def optimizer():\n    return tf.math.log(keras.Input((3,)))\n", "--keras legacy"),
        ("from elasticdl.python.master import main\n", "Older modules"),
        ("import elasticdl_client.main\n", "Older modules"),
        ("tf.keras.layers.DenseFeatures\n", "--keras legacy"),
    ],
)
def test_common_mistakes_have_their_fix(text: str, fix: str, make_spec: Any, tmp_path: Path) -> None:
    zoo = write(tmp_path / "zoo", net=BASE + text)
    with pytest.raises(UserCodeError) as caught:
        run_local(make_spec(model_zoo=str(zoo), model_def="net.Net"), tmp_path / "out", lambda event: None)
    assert fix in caught.value.fix


@pytest.mark.parametrize("line", ["from deepctr.models import DeepFM", "from deepctr import DeepFM"])
def test_a_folder_called_like_a_missing_package_is_not_blamed(line: str, make_spec: Any, tmp_path: Path) -> None:
    folder = tmp_path / "zoo" / "deepctr"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "wdl.py").write_text(f"{line}\n{BASE}")
    with pytest.raises(UserCodeError, match="which is not there") as caught:
        load_model_module(make_spec(model_zoo=str(tmp_path / "zoo"), model_def="deepctr.wdl.Net"), tmp_path / "zoo")
    assert "install the package deepctr" in caught.value.fix


def test_a_wrong_shape_is_no_matter_of_the_keras_version(make_spec: Any, tmp_path: Path) -> None:
    wrong = (
        "def custom_model():\n    i = keras.Input((4,))\n    return keras.Model(i, keras.layers.Reshape((3, 5))(i))\n"
    )
    zoo = write(tmp_path / "zoo", net=BASE + wrong)
    with pytest.raises(UserCodeError, match=r"total size .* must be unchanged") as caught:
        run_local(make_spec(model_zoo=str(zoo), model_def="net.custom_model"), tmp_path / "out", lambda event: None)
    assert "legacy" not in caught.value.fix


IMAGES = """
def custom_model():
    return keras.Sequential([keras.Input((2, 2, 1)), keras.layers.Flatten(), keras.layers.Dense(1)])

def feed(dataset, mode, metadata):
    def parse(columns):
        pixels = tf.cast(tf.reshape(tf.strings.to_number(columns[:1], tf.int32), (1, 1, 1)), tf.uint8)
        image = tf.io.decode_png(tf.io.encode_png(tf.tile(pixels, (2, 2, 1))), channels=1)
        return tf.cast(tf.reshape(image, (2, 2, 1)), tf.float32), tf.strings.to_number(columns[0])
    return dataset.map(parse)
"""
WORDS = """
def custom_model():
    words = keras.Input((3,), dtype="string")
    places = keras.layers.StringLookup()(words)
    return keras.Model(words, keras.layers.Dense(1)(keras.ops.cast(places, "float32")))

def feed(dataset, mode, metadata):
    return dataset.map(lambda columns: (columns[1:], tf.strings.to_number(columns[0])))
"""


def test_what_tensorflow_cannot_vectorize_is_not_printed(
    make_spec: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    zoo = write(tmp_path / "zoo", net=BASE + IMAGES)
    events: list[dict[str, Any]] = []
    spec = make_spec(model_zoo=str(zoo), model_def="net.custom_model", max_steps=2, export_formats="")
    run_local(spec, tmp_path / "out", events.append)
    assert events[-1]["steps"] == 2
    printed = capfd.readouterr()
    assert "pfor" not in printed.out + printed.err + caplog.text


def test_a_layer_without_its_vocabulary_is_named_with_the_fix(make_spec: Any, tmp_path: Path) -> None:
    zoo = write(tmp_path / "zoo", net=BASE + WORDS)
    spec = make_spec(model_zoo=str(zoo), model_def="net.custom_model", max_steps=2, export_formats="")
    with pytest.raises(UserCodeError) as caught:
        run_local(spec, tmp_path / "out", lambda event: None)
    assert "Table not initialized" in caught.value.message
    assert "string_lookup" in caught.value.message
    assert "Detected at node" not in caught.value.message
    assert "give the layer its vocabulary" in caught.value.fix


def test_a_processor_may_take_predictions_for_tensors(tmp_path: Path) -> None:
    from elasticdl.data import Shard
    from elasticdl_worker.trainers.predictions import PredictionWriter
    from elasticdl_worker.user_code import ModelModule

    taken: list[Any] = []

    class Processor:
        def process(self, predictions: Any, worker_id: int) -> None:
            values = predictions["a"] if isinstance(predictions, dict) else predictions
            taken.append((values.numpy().tolist(), (np.asarray(values) * 2).tolist(), worker_id))

    module = ModelModule(Path("net.py"), (), lambda: None, prediction_outputs_processor=Processor)
    with PredictionWriter(module, tmp_path, 3).write_task(Shard("x", 0, 2)) as write_one:
        write_one(tf.constant([1.0, 2.0]), 0, 2)
        write_one({"a": np.array([3.0]), "b": np.array([4.0])}, None, 1)
    assert taken == [([1.0, 2.0], [2.0, 4.0], 3), ([3.0], [6.0], 3)]


def test_a_reader_of_ours_is_not_blamed_on_the_module() -> None:
    from elasticdl_worker.user_code import ModelModule

    for reader, blamed in ((None, "reading the data raised OSError"), (list, "custom_data_reader raised OSError")):
        module = ModelModule(Path("net.py"), (), lambda: None, custom_data_reader=reader)
        with pytest.raises(UserCodeError, match=blamed), module.guard("custom_data_reader"):
            raise OSError("Stale file handle")
