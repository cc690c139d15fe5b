"""What runs in one process beside plain training: open ids, callbacks, prediction, eager runs, the command."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import tensorflow as tf

from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_worker.local import main, run_local
from elasticdl_worker.trainers.export_request import locate_checkpoint
from elasticdl_worker.trainers.tensorflow.export.model_files import signature_of
from elasticdl_worker.trainers.tensorflow.model.layer_prints import print_layer_outputs
from tests.unit.worker.conftest import ZOO

pytestmark = pytest.mark.unit
Events = list[dict[str, Any]]


def run(spec: Any, output: Path) -> Events:
    events: Events = []
    run_local(spec, output, events.append)
    return events


def test_ids_without_a_bound_train_and_export(make_spec: Any, more_clicks: Path, tmp_path: Path) -> None:
    fields = {"model_def": "words.CustomModel", "validation_data": str(more_clicks), "export_formats": "auto"}
    spec = make_spec(**fields, num_epochs=8)
    done = run(spec, tmp_path)[-1]
    assert done["metrics"]["auc"] > 0.6
    names = {entry["name"] for entry in done["artifacts"]}
    assert "model.keras" not in names
    assert {"README.json", "table-0.npz"} <= names
    table = np.load(tmp_path / "table-0.npz")
    assert table["vectors"].shape == (len(table["ids"]), 4)
    data = np.loadtxt(spec.training_data, delimiter=",", dtype=np.int64)[:, 1:]
    assert set(table["ids"].tolist()) >= set((data * 1_000_003).ravel().tolist())
    served = tf.saved_model.load(str(tmp_path / "saved_model"))
    logits = served.serve(tf.constant(data)).numpy()[:, 0]
    labels = np.loadtxt(spec.training_data, delimiter=",", dtype=np.int64)[:, 0]
    assert np.mean((logits > 0) == labels) > 0.8
    assert "left out" in json.loads((tmp_path / "README.json").read_text())["formats"]["keras"]


def test_a_learning_rate_schedule_goes_by_version(make_spec: Any, tmp_path: Path) -> None:
    fields = {"model_def": "words.CustomModel", "callbacks": "step_rate", "optimizer": "deepfm.optimizer"}
    spec = make_spec(**fields, export_formats="keras,saved_model", max_steps=3)
    longer = make_spec(**fields, export_formats="keras,saved_model", max_steps=9)
    run(spec, tmp_path / "short")
    run(longer, tmp_path / "long")
    short, long = (np.load(tmp_path / name / "table-0.npz") for name in ("short", "long"))
    rows = dict(zip(long["ids"].tolist(), long["vectors"], strict=True))
    for i, row in zip(short["ids"].tolist(), short["vectors"], strict=True):
        np.testing.assert_array_equal(rows[i], row)


def test_max_steps_and_early_stopping_end_a_run(make_spec: Any, more_clicks: Path, tmp_path: Path) -> None:
    fields = {"model_def": "words.CustomModel", "export_formats": "", "num_epochs": 9}
    assert run(make_spec(**fields, callbacks="at_most_seven"), tmp_path)[-1]["steps"] == 7
    stopped = run(make_spec(**fields, callbacks="impatient", validation_data=str(more_clicks)), tmp_path)
    assert [e["epoch"] for e in stopped if e["event"] == "evaluation"] == [0, 1]


def test_predictions_become_one_file_a_shard(make_spec: Any, clicks: Path, tmp_path: Path) -> None:
    spec = make_spec(type="prediction", prediction_data=str(clicks), checkpoint_dir_for_init=str(tmp_path / "none"))
    with pytest.raises(Exception, match="there is no checkpoint in"):
        run(spec, tmp_path)
    from elasticdl.data import Shard
    from elasticdl_worker.trainers.predictions import PredictionWriter
    from elasticdl_worker.user_code import load_model_module
    from tests.unit.worker.conftest import ZOO

    module = load_model_module(spec, ZOO)
    sink = PredictionWriter(module, tmp_path / "out", 0)
    shard = Shard("/data/a.csv", 128, 256)
    for _ in range(2):  # a task that is done twice leaves the same one file
        with sink.write_task(shard) as write:
            write(np.zeros((64, 1)), 128, 64)
            write({"predictions": np.ones((64, 1))}, 192, 64)
    with pytest.raises(RuntimeError), sink.write_task(Shard("/data/a.csv", 256, 300)):
        raise RuntimeError("lost in the middle")
    (file,) = (tmp_path / "out").iterdir()
    assert file.name.endswith("-000000000128-000000000256.npz")
    assert np.load(file)["predictions"].sum() == 64
    assert [entry["name"] for entry in sink.list_files()] == [file.name]


def test_a_processor_of_the_module_takes_the_predictions(make_spec: Any, tmp_path: Path) -> None:
    from elasticdl.data import Shard
    from elasticdl_worker.trainers.predictions import PredictionWriter
    from elasticdl_worker.user_code import load_model_module
    from tests.unit.worker.conftest import ZOO

    spec = make_spec(model_def="words.CustomModel", prediction_outputs_processor="Processor")
    module = load_model_module(spec, ZOO)
    with PredictionWriter(module, tmp_path / "out", 3).write_task(Shard("x", 0, 5)) as write:
        write(np.zeros((5, 2)), 0, 5)
    assert module.prediction_outputs_processor is not None
    assert module.prediction_outputs_processor.seen == [(3, (5, 2))]
    assert not (tmp_path / "out").exists()


def test_an_eager_run_prints_every_layer_and_gives_the_same_losses(
    make_spec: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = run(make_spec(max_steps=4, export_formats=""), tmp_path)
    eager = run(make_spec(max_steps=4, export_formats="", eager=True), tmp_path)
    printed = capsys.readouterr().err
    assert eager[-2]["loss"] == pytest.approx(compiled[-2]["loss"], rel=1e-5)
    for name in ("weights", "vectors", "flatten", "dense", "concatenate", "logit"):
        assert f" {name} " in printed
    assert "float32[32, 3, 4] min" in printed


def test_printed_layers_tell_what_is_not_finite() -> None:
    out = io.StringIO()
    with print_layer_outputs(out):
        tf.keras.layers.Activation("linear", name="risky")(tf.constant([1.0, float("nan")]))
    assert "risky" in out.getvalue()
    assert "NOT FINITE: 1 of 2" in out.getvalue()


@pytest.fixture
def own_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gives the tests' logs back when the command, which sets up its own, is over."""
    monkeypatch.delenv("ELASTICDL_LOG_LEVEL", raising=False)
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize(("level", "logged"), [("", False), ("WARNING", False), ("info", True), ("loud", None)])
def test_the_command_logs_what_the_level_asks_for(
    level: str,
    logged: bool | None,
    own_logs: None,
    make_spec: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ELASTICDL_LOG_LEVEL", level)
    spec = make_spec(export_formats="", max_steps=1, checkpoint_dir=str(tmp_path / "checkpoints"))
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_mapping()))
    code = main(["--spec", str(tmp_path / "spec.json"), "--output", str(tmp_path / "out")])
    said = capsys.readouterr()
    if logged is None:
        assert code == 1 and "ELASTICDL_LOG_LEVEL: 'loud' is no level" in json.loads(said.out)["message"]
    else:
        assert code == 0 and ("version=1" in said.err) is logged, said.err


def test_the_command_speaks_json_lines(
    own_logs: None, make_spec: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(make_spec(export_formats="keras").to_mapping()))
    assert main(["--spec", str(path), "--output", str(tmp_path / "out")]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"started", "progress", "done"} == {event["event"] for event in events}
    assert events[-2] | {"samples_per_second": 0} == {
        "event": "progress",
        "total": 600,
        "records": 600,
        "epoch": 0,
        "step": 19,
        "loss": events[-2]["loss"],
        "last_loss": events[-2]["last_loss"],
        "learning_rate": pytest.approx(0.1),
        "training_metrics": events[-2]["training_metrics"],
        "samples_per_second": 0,
    }
    path.write_text(json.dumps(make_spec(loss="nothing").to_mapping()))
    assert main(["--spec", str(path)]) == 1
    error = json.loads(capsys.readouterr().out)
    assert error["event"] == "error"
    assert "has no 'nothing'" in error["message"]
    assert error["fix"]


def test_several_jobs_run_one_after_the_other_and_one_that_dies_stops_no_other(
    make_spec: Any, tmp_path: Path
) -> None:
    (tmp_path / "dies.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    dies = {"model_zoo": str(tmp_path), "model_def": "dies.custom_model"}
    command = [sys.executable, "-P", "-m", "elasticdl_worker", "local"]
    for at, changes in enumerate([{}, dies, {"loss": "nothing"}, {}]):
        file = tmp_path / f"{at}.json"
        file.write_text(json.dumps({**make_spec(export_formats="", max_steps=2).to_mapping(), **changes}))
        command += ["--spec", str(file), "--output", str(tmp_path / str(at))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    ends = [one for one in map(json.loads, done.stdout.splitlines()) if one["event"] in ("done", "error")]
    assert [one["event"] for one in ends] == ["done", "error", "error", "done"], done.stderr
    assert ends[1]["message"] == "it was killed by signal 9" and "has no 'nothing'" in ends[2]["message"]
    assert done.returncode == 9
    assert ends[0]["metrics"] == ends[3]["metrics"] and ends[0]["training_metrics"] == ends[3]["training_metrics"]


def test_a_module_that_parses_arguments_finds_none_of_ours(
    own_logs: None,
    make_spec: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "own.py").write_text(
        "import argparse\nfrom deepfm import *\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--size', type=int, default=4)\nSIZE = parser.parse_args().size\n"
    )
    (tmp_path / "deepfm.py").write_text((ZOO / "deepfm.py").read_text())
    spec = make_spec(model_zoo=str(tmp_path), model_def="own.custom_model", max_steps=1, export_formats="")
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_mapping()))
    given = ["--spec", str(tmp_path / "spec.json")]
    monkeypatch.setattr(sys, "argv", ["worker", "local", *given])
    assert main(given) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("callbacks", "validated", "message"),
    [
        ("watching_nothing", True, "watches 'f1', but the evaluation gives"),
        ("impatient", False, "no validation data"),
        ("twice", True, "has 2 EarlyStopping"),
    ],
)
def test_early_stopping_that_would_never_stop_is_an_error(
    make_spec: Any, more_clicks: Path, tmp_path: Path, callbacks: str, validated: bool, message: str
) -> None:
    data = {"validation_data": str(more_clicks)} if validated else {}
    spec = make_spec(model_def="words.CustomModel", export_formats="", callbacks=callbacks, **data)
    with pytest.raises(UserCodeError, match=message):
        run(spec, tmp_path)


def test_with_evaluation_steps_the_end_of_an_epoch_is_evaluated_too_but_no_version_twice(
    make_spec: Any, more_clicks: Path, tmp_path: Path
) -> None:
    fields = {"model_def": "words.CustomModel", "export_formats": "", "validation_data": str(more_clicks)}
    plain = run(make_spec(**fields), tmp_path)
    steps = plain[-1]["steps"]
    for every in (steps - 1, steps):
        events = run(make_spec(**fields, evaluation_steps=every), tmp_path)
        evaluated = [event["step"] for event in events if event["event"] == "evaluation"]
        assert evaluated == sorted({every, steps})


def test_a_folder_of_checkpoints_is_the_one_that_was_saved_last(tmp_path: Path) -> None:
    """As for a master: the job that wrote them may have gone back to an older one, and gone on from there."""
    for version, saved in ((100, 1.0), (200, 2.0), (120, 3.0)):
        folder = tmp_path / f"version-{version}"
        folder.mkdir()
        file = {"name": f"{version}.bin", "size": 1, "sha256": "0" * 64}
        manifest = {"version": version, "directory": "/elsewhere", "files": [file], "created_at": saved}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    directory, files, version = locate_checkpoint(str(tmp_path))
    assert (directory, files[0].name, version) == (str(tmp_path / "version-120"), "120.bin", 120)
    assert locate_checkpoint(str(tmp_path / "version-200"))[2] == 200


def test_a_damaged_manifest_is_named_by_a_local_run(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match=r"manifest\.json is damaged"):
        locate_checkpoint(str(tmp_path))


ODD = """
import elasticdl.layers
import keras
import tensorflow as tf

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.words = keras.layers.Embedding(1000, 2)
        self.open = elasticdl.layers.Embedding(2, combiner="sum")
        self.out = keras.layers.Dense(1)

    def call(self, features, training=False):
        looked = tf.reduce_sum(self.words(features["dense"]), 1)
        for name in features:
            if name != "dense":
                looked += self.open(features[name])
        return self.out(looked)

def custom_model():
    return Net()

def loss(labels, predictions):
    return tf.reduce_mean((labels - predictions[:, 0]) ** 2)

def optimizer():
    return keras.optimizers.SGD(0.1)

def feed(dataset, mode, metadata):
    def split(row):
        ids = tf.strings.to_number(row, tf.int64)
        return {"dense": ids[1:], "ids": tf.sparse.from_dense(ids[1:])}, tf.cast(ids[0], tf.float32)
    return dataset.map(split)
"""


def test_a_model_of_sparse_features_is_exported(make_spec: Any, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    spec = make_spec(model_zoo=str(tmp_path), model_def="odd.custom_model", max_steps=2, export_formats="saved_model")
    run(spec, tmp_path / "out")
    ids = tf.constant([[1, 2, 3], [0, 5, 7]], tf.int64)
    loaded = tf.saved_model.load(str(tmp_path / "out" / "saved_model"))
    served = loaded.serve({"dense": ids, "ids": tf.sparse.from_dense(ids)})
    assert served.shape == (2, 1)
    assert np.isfinite(served.numpy()).all()


def test_a_signature_has_words_for_names_that_are_none(tmp_path: Path) -> None:
    spec = {"capital-gain": tf.TensorSpec([None], tf.float32), "1st": tf.TensorSpec([None], tf.float32)}
    holder = tf.Module()
    signature = signature_of(lambda given: given["capital-gain"] - given["1st"], spec)
    tf.saved_model.save(holder, str(tmp_path), signatures=signature)
    served = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    found = served(capital_gain=tf.constant([5.0]), feature_1st=tf.constant([2.0]))
    assert found["output_0"].numpy().tolist() == [3.0]
