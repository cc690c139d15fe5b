"""The look at a model module without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticdl.model_check import check_model_module
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec

pytestmark = pytest.mark.unit

GOOD = """
raise SystemExit("a module that is looked at is not run")
import keras
def custom_model(): ...
def loss(labels, predictions): ...
def optimizer(): ...
def feed(dataset, mode, metadata): ...
"""


def _spec(**changes: Any) -> JobSpec:
    values = {"model_def": "model.custom_model", "model_zoo": "/zoo", "training_data": "/data"}
    return JobSpec.from_mapping({**values, **changes})


def _check(zoo: Path, source: str, **changes: Any) -> None:
    (zoo / "model.py").write_text(source)
    check_model_module(zoo, _spec(**changes))


def test_a_good_module_passes_and_is_not_run(tmp_path: Path) -> None:
    _check(tmp_path, GOOD)


def test_devices_are_refused_where_nothing_would_be_computed_on_them(tmp_path: Path) -> None:
    in_torch = GOOD.replace("import keras", "import torch")
    for accepted in ("gpu=0.5", "gpu=1"):
        _check(tmp_path, GOOD, worker_resource_request=accepted)
        _check(tmp_path, in_torch, worker_resource_request=accepted)
    with pytest.raises(UserCodeError, match=r"on one device, so that with gpu=2 others would lie idle") as caught:
        _check(tmp_path, in_torch, worker_resource_request="gpu=2")
    assert "gpu=1 and more workers" in caught.value.fix
    (tmp_path / "loop.py").write_text("import elasticdl.torch\n")
    script = _spec(model_def="loop.__main__", worker_resource_request="gpu=2")
    assert check_model_module(tmp_path, script) == "torch"


def test_nccl_is_refused_for_models_of_which_it_adds_nothing(tmp_path: Path) -> None:
    asked = {
        "collective": "nccl",
        "distribution_strategy": "AllReduceStrategy",
        "deterministic": False,
        "worker_resource_request": "gpu=1",
    }
    _check(tmp_path, GOOD.replace("import keras", "import torch"), **asked)
    with pytest.raises(UserCodeError, match="of models in PyTorch only"):
        _check(tmp_path, GOOD, **asked)


@pytest.mark.parametrize("name", ["custom_model", "loss", "optimizer", "feed"])
def test_each_needed_entry_is_missed(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserCodeError, match=f"model.py does not define '{name}'") as caught:
        _check(tmp_path, GOOD.replace(f"def {name}(", f"def {name}_("))
    assert "add to model.py" in caught.value.fix
    assert "did you mean" in caught.value.fix


@pytest.mark.parametrize(
    "definition",
    [
        "loss = lambda labels, predictions: 0",
        "from losses import cross_entropy as loss",
        "import loss",
        "loss: object = None",
        "(loss, other) = (1, 2)",
        "if True:\n    def loss(): ...",
        "try:\n    import fast\nexcept ImportError:\n    loss = None",
        "with made('x') as loss: pass",
        "for loss in (): pass",
        "class loss: ...",
        "if (loss := 1): pass",
        "from losses import *",
        "globals()['loss'] = 1",
        "exec('loss = 1')",
        "def __getattr__(name): ...",
        "match 1:\n    case 1:\n        loss = 1",
    ],
)
def test_names_come_about_in_many_ways(tmp_path: Path, definition: str) -> None:
    _check(tmp_path, GOOD.replace("def loss(labels, predictions): ...", definition))


@pytest.mark.parametrize(
    ("definition", "entry", "fix"),
    [
        ("def eval_metric_fn(): ...", "eval_metrics_fn", "call it eval_metrics_fn"),
        ("def eval_metrics(): ...", "eval_metrics_fn", "--eval_metrics_fn eval_metrics"),
        ("def evalmetrics_fn(): ...", "eval_metrics_fn", "call it"),
        ("def callback(): ...", "callbacks", "call it callbacks"),
        ("eval_metric_fn = lambda: {}", "eval_metrics_fn", "call it eval_metrics_fn"),
        ("class PredictionOutputProcessor: ...", "PredictionOutputsProcessor", "call it"),
        ("def custom_datareader(origin): ...", "custom_data_reader", "call it"),
        ("def collate_fn(samples): ...", "collate", "call it collate"),
    ],
)
def test_a_function_that_looks_like_an_entry_is_refused(
    tmp_path: Path, definition: str, entry: str, fix: str
) -> None:
    """It was passed over without a word, and the job ended without metrics, or by a constant rate."""
    with pytest.raises(
        UserCodeError, match=rf"model\.py:\d+: nothing uses .* did you mean the entry {entry}\?"
    ) as caught:
        _check(tmp_path, f"{GOOD}\n{definition}\n")
    assert fix in caught.value.fix and "passes as _" in caught.value.fix


@pytest.mark.parametrize("more", ["", "def callbacks(): return []"])
@pytest.mark.parametrize("name", ["learning_rate_scheduler", "lr_schedule"])
def test_a_schedule_that_nothing_asks_is_refused(tmp_path: Path, name: str, more: str) -> None:
    with pytest.raises(UserCodeError, match=f"nothing uses {name}, which looks like a schedule") as caught:
        _check(tmp_path, f"{GOOD}\n{more}\ndef {name}(version): return 0.1\n")
    assert f"callbacks.LearningRateScheduler({name})" in caught.value.fix


def test_a_feed_of_another_name_is_refused_where_none_is_needed(tmp_path: Path) -> None:
    """A reader that makes features by itself took its place."""
    source = GOOD.replace("def feed(", "def feed_fn(")
    with pytest.raises(UserCodeError, match=r"did you mean the entry feed\?"):
        _check(tmp_path, source, data_reader_params={"label": "y"})
    _check(tmp_path, source, data_reader_params={"label": "y"}, feed="feed_fn")


@pytest.mark.parametrize(
    "more",
    [
        "def eval_metrics(): ...\ndef eval_metrics_fn(): return eval_metrics()",
        "def metrics(): ...\neval_metrics_fn = metrics",
        "def lr_schedule(version): ...\ndef callbacks(): return [LearningRateScheduler(lr_schedule)]",
        "def collate_fn(samples): ...\nloader = DataLoader(collate_fn=collate_fn)",
        "@registered\ndef metrics(): ...",
        "def _metrics(): ...",
        "__all__ = ['metrics']\ndef metrics(): ...",
        "def callbacks(): ...\ndef callback(): ...",
        "from other import metrics",
        "from other import *\ndef metrics(): ...",
        "def accuracy(labels, predictions): ...",
    ],
)
def test_functions_of_ones_own_pass(tmp_path: Path, more: str) -> None:
    _check(tmp_path, f"{GOOD}\n{more}\n")


def test_a_function_that_a_flag_names_passes(tmp_path: Path) -> None:
    _check(tmp_path, f"{GOOD}\ndef metrics(): ...\n", eval_metrics_fn="metrics")


@pytest.mark.parametrize(
    ("name", "definition"),
    [
        ("loss", "def loss(labels): ..."),
        ("loss", "def loss(): ..."),
        ("loss", "def loss(labels, predictions, weights): ..."),
        ("loss", "def loss(labels, predictions, *, weights): ..."),
        ("feed", "def feed(dataset): ..."),
        ("feed", "def feed(dataset, mode, metadata, seed): ..."),
    ],
)
def test_a_function_that_cannot_be_called_is_told_with_its_line(tmp_path: Path, name: str, definition: str) -> None:
    (line,) = [line for line in GOOD.splitlines() if line.startswith(f"def {name}")]
    with pytest.raises(
        UserCodeError, match=rf"model\.py:[57]: {name} cannot be called with [23] arguments"
    ) as caught:
        _check(tmp_path, GOOD.replace(line, definition))
    assert line.removesuffix(" ...") in caught.value.fix


def test_a_loss_that_names_predictions_first_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(
        UserCodeError, match=r"model\.py:[57]: loss names its arguments \(outputs, targets\)"
    ) as caught:
        _check(tmp_path, GOOD.replace("def loss(labels, predictions)", "def loss(outputs, targets)"))
    assert "(labels, predictions)" in caught.value.fix


def test_a_collate_function_that_takes_nothing_is_told_with_its_line(tmp_path: Path) -> None:
    source = GOOD.replace("import keras", "import torch") + "\n\ndef collate(): ...\n"
    line = source.splitlines().index("def collate(): ...") + 1
    with pytest.raises(
        UserCodeError, match=rf"model\.py:{line}: collate cannot be called with 1 argument\n"
    ) as caught:
        _check(tmp_path, source)
    assert caught.value.fix == "write it as def collate(samples): ..."


@pytest.mark.parametrize(
    "definition",
    [
        "def loss(*both): ...",
        "def loss(labels, predictions, weights=None, *, more=1, **others): ...",
        "def loss(labels, /, predictions): ...",
        "@wrapped\ndef loss(labels): ...",
        "def loss(one): ...\nloss = wrapped(loss)",
        "def loss(one): ...\nfrom losses import focal as loss",
        "if fast:\n    def loss(one): ...\nelse:\n    def loss(labels, predictions): ...",
        "def loss(one): ...\ndef loss(labels, predictions): ...",
        "class loss: ...",
    ],
)
def test_a_function_that_may_be_called_passes(tmp_path: Path, definition: str) -> None:
    _check(tmp_path, GOOD.replace("def loss(labels, predictions): ...", definition))


@pytest.mark.parametrize("definition", ["loss: object", "def f():\n    loss = 1", "class A:\n    loss = 1", "loss"])
def test_what_is_no_definition_does_not_count(tmp_path: Path, definition: str) -> None:
    with pytest.raises(UserCodeError, match="'loss'"):
        _check(tmp_path, GOOD.replace("def loss(labels, predictions): ...", definition))


def test_the_first_names_of_the_original_work(tmp_path: Path) -> None:
    source = GOOD.replace("custom_model", "forward").replace("feed", "dataset_fn")
    _check(tmp_path, source, model_def="model.forward")
    _check(tmp_path, source.replace("dataset_fn", "my_feed"), model_def="model.forward", feed="my_feed")


def test_a_syntax_error_has_file_line_and_text(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"model\.py:3: ") as caught:
        _check(tmp_path, "import keras\n\ndef custom_model(:\n    pass\n")
    assert "def custom_model(:" in caught.value.traceback
    assert "line 3" in caught.value.fix


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x = 1\0", b"# -*- coding: nonsense -*-\n", b"(" * 5000])
def test_a_file_that_is_no_python(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.py").write_bytes(content)
    with pytest.raises(UserCodeError, match=r"model\.py"):
        check_model_module(tmp_path, _spec())


@pytest.mark.parametrize("encoding", ["nonsense", "hex", "rot13", "utf-16"])
def test_a_file_that_declares_no_usable_encoding_is_told_so(encoding: str, tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=rf"^model\.py declares an encoding .*{encoding}") as caught:
        _check(tmp_path, f"# -*- coding: {encoding} -*-\n{GOOD}")
    assert "coding: utf-8" in caught.value.fix
    assert " for " not in caught.value.message


@pytest.mark.parametrize("changes", [{"model_zoo": f"/{'x' * 300}"}, {"model_def": f"{'x' * 280}.f"}])
def test_names_that_no_file_can_have_are_the_user_s_to_mend(changes: dict[str, str], tmp_path: Path) -> None:
    """The api answered 503, "try again"."""
    spec = _spec(**changes)
    with pytest.raises(UserCodeError, match="cannot be read: File name too long"):
        check_model_module(changes.get("model_zoo", tmp_path), spec)


def test_a_file_in_another_encoding_is_read(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_bytes(b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + GOOD.encode())
    check_model_module(tmp_path, _spec())


def test_folders_and_other_files_of_the_zoo(tmp_path: Path) -> None:
    (tmp_path / "vision" / "mnist").mkdir(parents=True)
    (tmp_path / "vision" / "mnist" / "cnn.py").write_text(GOOD)
    (tmp_path / "losses.py").write_text("def focal(labels, predictions): ...\n")
    spec = {"model_def": "vision.mnist.cnn.custom_model"}
    check_model_module(tmp_path, _spec(**spec))
    check_model_module(tmp_path, _spec(**spec, loss="losses.focal"))
    with pytest.raises(UserCodeError, match=r"losses\.py does not define 'dice'"):
        check_model_module(tmp_path, _spec(**spec, loss="losses.dice"))
    with pytest.raises(UserCodeError, match=r"--loss names the file lost\.py") as caught:
        check_model_module(tmp_path, _spec(**spec, loss="lost.focal"))
    assert "losses.py" in caught.value.fix
    with pytest.raises(UserCodeError, match=r"--model_def names the file cnn\.py"):
        check_model_module(tmp_path, _spec(model_def="cnn.custom_model"))
    with pytest.raises(UserCodeError, match="no directory"):
        check_model_module(tmp_path / "none", _spec())


def test_the_reader_may_bring_the_feed(tmp_path: Path) -> None:
    source = GOOD.replace("def feed", "def unfeed")
    _check(tmp_path, source, data_reader_params={"label": "class"})
    _check(tmp_path, source + "\ndef custom_data_reader(data_origin): ...\n")
    with pytest.raises(UserCodeError, match="feed or dataset_fn"):
        _check(tmp_path, source)


def test_what_other_types_of_jobs_need(tmp_path: Path) -> None:
    init = {"checkpoint_dir_for_init": "/c"}
    trained = GOOD.replace("def loss", "def lost").replace("def optimizer", "def optimiser")
    evaluation = {**init, "type": "evaluation", "validation_data": "/v", "training_data": ""}
    with pytest.raises(UserCodeError, match="eval_metrics_fn"):
        _check(tmp_path, trained, **evaluation)
    _check(tmp_path, trained + "def eval_metrics_fn(): ...\n", **evaluation)
    prediction = {**init, "type": "prediction", "prediction_data": "/p", "training_data": ""}
    _check(tmp_path, trained, **prediction)
    with pytest.raises(UserCodeError, match="'Writer'"):
        _check(tmp_path, trained, **prediction, prediction_outputs_processor="Writer")


def test_what_is_named_must_be_there(tmp_path: Path) -> None:
    for flag in ("callbacks", "eval_metrics_fn", "custom_data_reader"):
        with pytest.raises(UserCodeError, match="'mine'"):
            _check(tmp_path, GOOD, **{flag: "mine"})


MODEL = "class Net(keras.Model):\n    def {}(self, *args): ...\ndef custom_model():\n    return Net()\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("def optimizer(): return keras.optimizers.Nadam(0.1)", "the optimizer Nadam is not among"),
        ("import tensorflow as tf\ndef optimizer(): return tf.keras.optimizers.Lion()", "the optimizer Lion is not"),
        (
            "from keras.optimizers import Lamb as Adam\ndef optimizer(): return Adam()",
            "the optimizer Lamb is not among",
        ),
        ("def optimizer(): return keras.optimizers.Adam(use_ema=True)", "has use_ema=True, which asks for moving"),
        (
            "def callbacks(): return [keras.callbacks.ReduceLROnPlateau()]",
            "the Keras callback ReduceLROnPlateau would",
        ),
        ("def callbacks(): return ['early']", "gives 'early', a str, which is no callback"),
        (MODEL.format("train_step"), r"Net.train_step \(model.py:\d+\) is never called"),
        (MODEL.format("call") + "class Sub(Net):\n    def compute_loss(self): ...\ncustom_model = Sub\n", ""),
        ("class custom_model(keras.Model):\n    def test_step(self): ...\n", "custom_model.test_step"),
        ("class Base(keras.Model):\n    def fit(self): ...\nclass custom_model(Base): ...\n", r"Base.fit \(model.py"),
        (MODEL.format("call"), ""),
        ("class Net:\n    def train_step(self): ...\n", ""),
        ("def optimizer(): return keras.optimizers.Adam(use_ema=False)", ""),
        (
            "def optimizer(kind=0):\n    if kind: return keras.optimizers.Nadam()\n    return keras.optimizers.SGD()",
            "",
        ),
        ("def callbacks(): return [keras.callbacks.EarlyStopping(), mine]", ""),
        ("class Nadam: ...\ndef optimizer(): return Nadam()", ""),
    ],
)
def test_what_is_plainly_refused_is_refused_before_it_is_submitted(tmp_path: Path, change: str, message: str) -> None:
    source = f"{GOOD}\n{change}\n"
    if not message:
        _check(tmp_path, source)
        return
    with pytest.raises(UserCodeError, match=message) as caught:
        _check(tmp_path, source)
    assert "model.py:" in caught.value.message
    assert caught.value.fix


def test_what_another_type_of_job_does_not_use_is_not_looked_at(tmp_path: Path) -> None:
    source = GOOD + "def optimizer(): return keras.optimizers.Nadam()\n"
    prediction = {"type": "prediction", "prediction_data": "/p", "training_data": "", "checkpoint_dir_for_init": "/c"}
    _check(tmp_path, source, **prediction)
