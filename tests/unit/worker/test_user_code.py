"""What a user did wrong is named with its place and its fix."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.data import create_data_reader
from elasticdl.modes import Mode
from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.input.pipeline import InputPipeline
from elasticdl_worker.trainers.tensorflow.model.build import BuildOptions, build_model
from elasticdl_worker.trainers.tensorflow.model.loading import load_module
from elasticdl_worker.trainers.tensorflow.model.optimizers import translate
from elasticdl_worker.user_code import importing_apart, load_model_module
from tests.unit.worker.conftest import ZOO

pytestmark = pytest.mark.unit


def write(folder: Path, text: str, name: str = "net.py") -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("fields", "message", "fix"),
    [
        ({"model_def": "deepfmm.custom_model"}, "there is no file", "did you mean deepfm?"),
        ({"model_def": "deepfm.custom_modle"}, "has no 'custom_modle'", "did you mean custom_model?"),
        ({"model_def": "deepfm.IDS"}, "is a int, not something to call", "a function or a class"),
        ({"loss": "looss"}, "--loss: ", "did you mean loss?"),
        ({"loss": "other.loss"}, "there is no file", "the zoo"),
        ({"optimizer_params": {"rate": 1}}, "cannot be called with", ""),
        ({"model_def": "broken.model_that_needs"}, "missing a required argument: 'size'", "--model_params"),
    ],
)
def test_a_missing_entry_is_refused_with_its_place(
    make_spec: Any, fields: dict[str, Any], message: str, fix: str
) -> None:
    if fields.get("optimizer_params"):
        fields["model_def"] = "broken.custom_model"
    with pytest.raises(UserCodeError) as caught:
        load_model_module(make_spec(**fields), ZOO)
    assert message in caught.value.message
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def forward(:\n  pass\n", "syntax.py:1: "),
        ("import no_such_package_anywhere\n", "imports 'no_such_package_anywhere', which is not there"),
        ("x = 1\n1 / 0\n", "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)\n", "called sys.exit(3)"),
    ],
)
def test_a_module_that_cannot_be_imported_says_where(make_spec: Any, tmp_path: Path, text: str, message: str) -> None:
    zoo = write(tmp_path / "zoo", text, "syntax.py")
    with pytest.raises(UserCodeError) as caught:
        load_model_module(make_spec(model_def="syntax.forward"), zoo)
    assert message in caught.value.message
    assert "syntax.py" in caught.value.message
    assert "elasticdl_worker" not in caught.value.traceback


def test_entries_come_from_the_same_file_another_file_or_a_package(make_spec: Any, tmp_path: Path) -> None:
    zoo = write(
        tmp_path / "zoo", "def forward(a=1, b=2):\n    return (a, b)\nfrom pack import extra\n", "pack/net.py"
    )
    write(zoo, "VALUE = 5\n", "pack/extra.py")
    write(zoo, "def my_loss(labels, predictions):\n    return 7\n", "losses.py")
    spec = make_spec(model_def="pack.net.forward", model_params={"b": 9}, loss="losses.my_loss")
    module = load_model_module(spec, zoo)
    assert module.build_model() == (1, 9)
    assert module.loss is not None
    assert module.loss(None, None) == 7
    assert module.has["optimizer"] is False
    with pytest.raises(UserCodeError, match="has no optimizer"):
        module.need("optimizer")


def test_a_module_may_have_the_name_of_an_installed_package(make_spec: Any, tmp_path: Path) -> None:
    zoo = write(tmp_path / "zoo", "def forward():\n    return 'mine'\n", "json.py")
    assert load_model_module(make_spec(model_def="json.forward"), zoo).build_model() == "mine"


@pytest.mark.parametrize(
    ("fields", "message", "fix"),
    [
        ({"model_def": "broken.no_model"}, "returned a int", "return a tf.keras.Model"),
        ({"model_def": "broken.model_of_wrong_shape"}, "calling the model", "int64[None, 3]"),
        ({"feed": "endless_feed"}, "repeats the records without end", "remove .repeat()"),
        ({"feed": "lonely_feed"}, "gives a", "(features, labels)"),
        ({"feed": "failing_feed"}, "records 0 to 128", "feed"),
        ({"loss": "loss_of_wrong_shape"}, "a training step raised", "check the shapes"),
        ({"loss": "loss_that_exits"}, "called sys.exit(0)", "instead of ending the process"),
        ({"loss": "loss_that_is_nan"}, "the loss is nan in the minibatch of records", "lower the learning rate"),
        ({"feed": ""}, "", ""),
    ],
)
def test_what_fails_in_a_run_names_the_cause(
    make_spec: Any, tmp_path: Path, fields: dict[str, Any], message: str, fix: str
) -> None:
    spec = make_spec(**({"model_def": "broken.custom_model", "export_formats": ""} | fields))
    if not message:
        run_local(spec, tmp_path, lambda event: None)
        return
    with pytest.raises(UserCodeError) as caught:
        run_local(spec, tmp_path, lambda event: None)
    assert message in caught.value.message
    assert fix in caught.value.fix


@pytest.mark.parametrize(("name", "message"), [("lion", "Lion is not among"), ("averaging", "moving averages")])
def test_optimizers_that_the_servers_do_not_have_are_refused(make_spec: Any, name: str, message: str) -> None:
    module = load_model_module(make_spec(model_def="broken.custom_model", optimizer=name), ZOO)
    with pytest.raises(UserCodeError, match=message):
        translate(module.need("optimizer")())


def test_a_schedule_gives_the_rate_by_model_version() -> None:
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.5, decay_steps=10, decay_rate=0.5)
    translated = translate(tf.keras.optimizers.Adam(schedule, clipnorm=2.0, amsgrad=True))
    assert translated.learning_rate is not None
    assert [translated.learning_rate(version, 0) for version in (0, 10, 20)] == pytest.approx([0.5, 0.25, 0.125])
    assert translated.spec.params["learning_rate"] == pytest.approx(0.5)
    assert translated.spec.params["amsgrad"] is True
    assert translated.clipping.clipnorm == 2.0


def test_a_truncated_file_is_a_data_error_with_the_file(make_spec: Any, clicks: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.csv"
    path.write_text(clicks.read_text())
    spec = make_spec(training_data=str(path))
    module = load_model_module(spec, ZOO)
    reader = create_data_reader(str(path), 128)
    pipeline = InputPipeline(reader, module, "training", 32)
    shards = list(reader.create_shards())
    path.write_text("\n".join(clicks.read_text().splitlines()[:100]) + "\n")
    with pytest.raises(DataError) as caught:
        for shard in shards:
            list(pipeline.minibatches(shard))
    assert str(path) in caught.value.message


def in_any_order(dataset: Any) -> Any:
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


@pytest.mark.parametrize(
    ("change", "ordered"),
    [
        (lambda d: d, True),
        (lambda d: d.map(lambda *x: x, num_parallel_calls=2).prefetch(1), True),
        (lambda d: d.map(lambda *x: x, num_parallel_calls=2, deterministic=False), False),
        (lambda d: in_any_order(d.map(lambda *x: x, num_parallel_calls=2)), False),
        (lambda d: in_any_order(d.map(lambda *x: x)), True),
        (lambda d: d.shuffle(8), False),
        (lambda d: d.filter(lambda *x: True), False),
        (lambda d: d.batch(2).unbatch(), False),
    ],
)
def test_the_order_of_records_is_known(make_spec: Any, change: Any, ordered: bool) -> None:
    spec = make_spec()
    module = load_model_module(spec, ZOO)
    feed = module.need("feed")
    changed = type(module)(
        module.path, module.roots, module.build_model, feed=lambda d, mode, meta: change(feed(d, mode, meta))
    )
    reader = create_data_reader(spec.training_data, 128)
    assert InputPipeline(reader, changed, str(Mode.TRAINING), 32).ordered is ordered


def test_ids_outside_a_closed_table_are_refused(make_spec: Any, tmp_path: Path) -> None:
    module = load_model_module(make_spec(), ZOO)
    spec = tf.TensorSpec([None, 3], tf.int64)
    model = build_model(module, spec, BuildOptions(0))
    from elasticdl_worker.trainers.tensorflow.step.programs import Programs

    programs = Programs(model)
    with pytest.raises(DataError, match=r"the id 1000 is outside \[0, 1000\)"):
        programs.collect(tf.constant([[1, 2, 1000]], tf.int64), training=True)


def test_a_module_that_is_imported_apart_builds_the_same_model_beside_the_first(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import keras\nSHARED = keras.layers.Dense(2)\nNETS = []\n"
        "@keras.saving.register_keras_serializable('apart')\nclass Twice(keras.layers.Layer):\n"
        "    def call(self, x):\n        return 2 * x\n"
        "def model():\n"
        "    NETS.append(keras.Sequential([keras.Input((3,)), SHARED, Twice(), keras.layers.Dense(1)]))\n"
        "    return NETS[-1]\n"
    )
    spec = JobSpec.from_mapping({"model_zoo": str(tmp_path), "model_def": "net.model", "training_data": "x.csv"})
    first = load_module(spec, tmp_path)
    features = tf.TensorSpec((None, 3), tf.float32)
    model, held = build_model(first, features, BuildOptions(None)), sys.modules["net"]
    with importing_apart(tmp_path.resolve()):
        other = build_model(load_module(spec, tmp_path), features, BuildOptions(None))
    assert sys.modules["net"] is held and [model.keras_model] == held.NETS
    assert other.keras_model is not model.keras_model and other.values().keys() == model.values().keys()
    assert all(np.array_equal(value, model.values()[name]) for name, value in other.values().items())
