"""What a module brings is applied or refused by name, with the same words in one process and on a cluster."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tf_keras

from elasticdl.callbacks import EarlyStopping, KeepBest, SavedModelExporter
from elasticdl_core.best_evaluation import BestEvaluation
from elasticdl_core.contract import TABLE, Subject, Verdict, find
from elasticdl_core.errors import UserCodeError
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.declared_rules import declared_rules
from elasticdl_worker.trainers.tensorflow.model.callbacks import translate_callbacks
from elasticdl_worker.trainers.tensorflow.model.contract import _replaced, check_optimizer
from elasticdl_worker.user_code import ModelModule
from tests.fakes.master import FakeMaster
from tests.fakes.parameters import MemoryParameters
from tests.unit.worker.test_ps_training import add_training, work

pytestmark = pytest.mark.unit

BASE = """
import keras
import tensorflow as tf
from deepfm import custom_model, loss, feed

def optimizer():
    return keras.optimizers.SGD(0.1)

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.logit = keras.layers.Dense(1)
    def call(self, ids, training=False):
        return self.logit(tf.cast(ids, tf.float32) * 0.001)
"""
FEED = (Path(__file__).parent / "zoo" / "deepfm.py").read_text()


def own(body: str) -> str:
    return f"class Mine(Net):\n    {body}\ndef custom_model():\n    return Mine()\n"


def optimizer(text: str) -> str:
    return f"def optimizer():\n    return {text}\n"


def callbacks(text: str) -> str:
    return f"def callbacks():\n    return {text}\n"


REFUSED = {
    "train_step": (own("def train_step(self, data): return {}"), "Mine.train_step", "is never called"),
    "compute_loss": (own("def compute_loss(self, *a, **k): return 0.0"), "Mine.compute_loss", "is never called"),
    "test_step": (own("def test_step(self, data): return {}"), "Mine.test_step", "is never called"),
    "predict_step": (own("def predict_step(self, data): return 0"), "Mine.predict_step", "predictions are what"),
    "inherited": (
        "class Base(Net):\n    def train_step(self, data): return {}\n" + own("pass").replace("(Net)", "(Base)"),
        "Base.train_step",
        "is never called",
    ),
    "compiled": (
        "def custom_model():\n    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse')\n    return model\n",
        "compile() was called",
        "has no effect",
    ),
    "metric inside": (
        own("def build(self, shape): self.seen = keras.metrics.Mean(name='seen')"),
        "the metric seen inside",
        "is not reported",
    ),
    "half precision": (
        "def custom_model():\n    return keras.Sequential([keras.Input((3,)), "
        "keras.layers.Dense(1, dtype='mixed_float16')])\n",
        "the policy mixed_float16",
        "needs loss scaling",
    ),
    "a variable of a layer": (
        own(
            "def build(self, shape): self.scale = tf.Variable(1.0)\n"
            "    def call(self, ids, training=False): return super().call(ids) * self.scale"
        ),
        "the variable scale of the layer mine (Mine) is none of the model's weights",
        "neither trained nor shared nor exported",
    ),
    "a list of variables": (
        own(
            "def build(self, shape): self.scales = [tf.Variable(1.0, trainable=False)]\n"
            "    def call(self, ids, training=False): return super().call(ids) * self.scales[0]"
        ),
        "the variable scales of the layer mine (Mine)",
        "neither trained nor shared nor exported",
    ),
    "a counter like a generator's state": (
        "SEEN = tf.Variable([0, 0, 0], trainable=False)\n"
        + own(
            "def call(self, ids, training=False):\n        SEEN.assign_add([1, 1, 1])\n"
            "        return super().call(ids) * tf.cast(SEEN[0], tf.float32)"
        ),
        "the variable SEEN of",
        "neither trained nor shared nor exported",
    ),
    "a global variable": (
        "SCALE = tf.Variable(1.0)\n" + own("def call(self, ids, training=False): return super().call(ids) * SCALE"),
        "the variable SCALE of",
        "neither trained nor shared nor exported",
    ),
    "a layer in a closure": (
        "def custom_model():\n    hidden = keras.layers.Dense(1, name='hidden')\n    hidden.build((None, 3))\n"
        "    inputs = keras.Input((3,))\n    scaled = keras.layers.Lambda(lambda x: hidden(x))(inputs)\n"
        "    return keras.Model(inputs, keras.layers.Dense(1)(scaled))\n",
        "the variable hidden/kernel (float32[3, 1])",
        "neither trained nor shared nor exported",
    ),
    "Nadam": (optimizer("keras.optimizers.Nadam(0.1)"), "the optimizer Nadam", "is not among"),
    "moving averages": (
        optimizer("keras.optimizers.Adam(0.1, use_ema=True)"),
        "the optimizer Adam has use_ema=True",
        "moving averages",
    ),
    "scaled": (
        optimizer("keras.optimizers.Adam(0.1, loss_scale_factor=8.0)"),
        "has loss_scale_factor=8.0",
        "loss scaling",
    ),
    "accumulated": (
        optimizer("keras.optimizers.Adam(0.1, gradient_accumulation_steps=4)"),
        "has gradient_accumulation_steps=4",
        "gradient accumulation",
    ),
    "scaling optimizer": (
        optimizer("keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())"),
        "the optimizer LossScaleOptimizer",
        "scales the loss",
    ),
    "an own Adam": (
        "class Adam(keras.optimizers.SGD):\n    def update_step(self, *a): pass\n" + optimizer("Adam(0.1)"),
        "the optimizer Adam, a SGD with its own update_step,",
        "has an update of its own",
    ),
    "a replaced update": (
        "def optimizer():\n    made = keras.optimizers.SGD(0.1)\n"
        "    made.update_step = lambda gradient, variable, rate: None\n    return made\n",
        "the optimizer SGD, whose update_step the module replaced,",
        "has an update of its own",
    ),
    "a bound update": (
        "import functools\ndef mine(self, pairs): pass\ndef optimizer():\n    made = keras.optimizers.Adam(0.1)\n"
        "    made.apply_gradients = functools.partial(mine, made)\n    return made\n",
        "the optimizer Adam, whose apply_gradients the module replaced,",
        "has an update of its own",
    ),
    "a wrapped update": (
        "import functools\ndef optimizer():\n    made = keras.optimizers.SGD(0.1)\n    plain = made.apply_gradients\n"
        "    made.apply_gradients = functools.wraps(plain)(lambda pairs: plain(pairs[:1]))\n    return made\n",
        "the optimizer SGD, whose apply_gradients the module replaced,",
        "has an update of its own",
    ),
    "a replaced step": (
        "def custom_model():\n    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])\n"
        "    model.train_step = lambda data: {}\n    return model\n",
        "train_step of the model",
        "is never called",
    ),
    "a replaced loss": (
        "def custom_model():\n    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])\n"
        "    model.compute_loss = (lambda self, *given: 0.0).__get__(model)\n    return model\n",
        "compute_loss of the model",
        "is never called",
    ),
    "an own optimizer": (
        "class Adam(keras.optimizers.Optimizer):\n    def update_step(self, *a): pass\n" + optimizer("Adam(0.1)"),
        "net.py) has",
        "has an update of its own",
    ),
    "another Keras": (
        "import tf_keras\n" + optimizer("tf_keras.optimizers.Adam(0.1)"),
        "the optimizer Adam is of tf_keras",
        "",
    ),
    "an optimizer's class": (optimizer("keras.optimizers.Adam"), "returned a class", ""),
    "an unknown name": (optimizer("'adamo'"), "'adamo', which Keras does not know", ""),
    "a rate that is a function": (
        optimizer("keras.optimizers.SGD(lambda: 0.1)"),
        "the learning rate of the optimizer SGD",
        "is a function",
    ),
    "ReduceLROnPlateau": (
        callbacks("[keras.callbacks.ReduceLROnPlateau()]"),
        "the Keras callback ReduceLROnPlateau",
        "would change the rate by evaluations",
    ),
    "an own callback": (
        "class Mine(keras.callbacks.Callback): pass\n" + callbacks("[Mine()]"),
        "net.py) would",
        "would run in one process",
    ),
    "an own callback of ours": (
        "from elasticdl.callbacks import Callback\nclass Mine(Callback): pass\n" + callbacks("[Mine()]"),
        "net.py) would",
        "would run in one process",
    ),
    "a callback's name": (callbacks("['early_stopping']"), "'early_stopping', a str, which is no callback", ""),
    "a callback's class": (callbacks("[keras.callbacks.TerminateOnNaN]"), "gives the class TerminateOnNaN", ""),
    "no list": (callbacks("'early_stopping'"), "callbacks() returned a str", ""),
    "a training metric": (
        callbacks("[keras.callbacks.EarlyStopping('loss')]"),
        "watches 'loss', a metric of training minibatches",
        "",
    ),
    "checkpoints of every epoch": (
        callbacks("[keras.callbacks.ModelCheckpoint('/tmp/no.keras')]"),
        "ModelCheckpoint would save one worker's copy",
        "",
    ),
    "checkpoints by a number of batches": (
        callbacks("[keras.callbacks.ModelCheckpoint('/tmp/no.keras', save_best_only=True, save_freq=9)]"),
        "ModelCheckpoint has save_freq",
        "",
    ),
    "the best of training metrics": (
        callbacks("[keras.callbacks.ModelCheckpoint('/tmp/no.keras', 'loss', save_best_only=True)]"),
        "ModelCheckpoint watches 'loss', a metric of training minibatches",
        "",
    ),
    "a schedule in the optimizer too": (
        optimizer("keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9))")
        + callbacks("[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)]"),
        "has a LearningRateScheduler, and the optimizer a CosineDecay besides",
        "",
    ),
    "two schedules": (
        "from elasticdl.callbacks import LearningRateScheduler as Rate\n"
        + callbacks("[Rate(lambda version: 0.1), Rate(lambda version: 0.2)]"),
        "more than one LearningRateScheduler",
        "",
    ),
}


WEIGHED = """
plain, WEIGHT = loss, tf.Variable(1.0)
def loss(labels, predictions): return plain(labels, predictions) * WEIGHT
"""


COUNTED = "SEEN = tf.Variable(0.0, trainable=False)\n" + own(
    "def call(self, ids, training=False):\n"
    "        if training: SEEN.assign_add(1.0)\n"
    "        return super().call(ids)"
)


def module_with(folder: Path, text: str, make_spec: Any, **fields: Any) -> Any:
    folder.mkdir()
    (folder / "deepfm.py").write_text(FEED)
    (folder / "net.py").write_text(BASE + text)
    model = "Mine" if "class Mine(Net)" in text or "class Mine(Base)" in text else "custom_model"
    return make_spec(model_zoo=str(folder), model_def=f"net.{model}", export_formats="", max_steps=2, **fields)


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.rotates
async def test_what_nobody_acts_on_is_refused_alike(case: str, make_spec: Any, tmp_path: Path) -> None:
    text, shown, how = REFUSED[case]
    spec = module_with(tmp_path / "zoo", text, make_spec)
    with pytest.raises(UserCodeError) as local:
        run_local(spec, tmp_path / "out", lambda event: None)
    master = FakeMaster(spec, tmp_path)
    await master.start()
    add_training(master, spec)
    with pytest.raises(UserCodeError) as cluster:
        await work(master, MemoryParameters())
    await master.stop()
    assert not master.reports, "refused before it trained"
    assert shown in local.value.message
    assert how in local.value.message
    assert local.value.fix
    assert (cluster.value.message, cluster.value.fix) == (local.value.message, local.value.fix)


@pytest.mark.parametrize(
    ("text", "shown", "how"),
    [
        (COUNTED, "the variable SEEN of", {}),
        (COUNTED, "the variable SEEN of", {"eager": True}),
        (WEIGHED, "the variable WEIGHT of", {}),
        (WEIGHED, "the variable WEIGHT of", {"eager": True}),
    ],
    ids=["in training alone", "in training alone, eager", "in the loss", "in the loss, eager"],
)
@pytest.mark.rotates(turns=3)
async def test_a_variable_that_only_a_step_uses_is_refused_by_the_first(
    text: str, shown: str, how: dict[str, Any], make_spec: Any, tmp_path: Path
) -> None:
    spec = module_with(tmp_path / "zoo", text, make_spec, **how)
    with pytest.raises(UserCodeError, match=shown) as local:
        run_local(spec, tmp_path / "out", lambda event: None)
    master = FakeMaster(spec, tmp_path)
    await master.start()
    add_training(master, spec)
    with pytest.raises(UserCodeError):
        await work(master, MemoryParameters())
    await master.stop()
    assert not master.reports
    assert (master.failures[0].message, master.failures[0].fix) == (local.value.message, local.value.fix)


@pytest.mark.parametrize(
    "text",
    [
        "class Mine(keras.optimizers.Adam):\n    '''Ours.'''\n    def __init__(self): super().__init__(0.01)\n"
        + optimizer("Mine()"),
        optimizer("'adam'"),
        callbacks("[keras.callbacks.TerminateOnNaN(), keras.callbacks.History()]"),
        callbacks("None"),
        own("def call(self, ids, training=False): return super().call(ids)\n    def helper(self): pass"),
        # Random generators are each worker's own; a constant is no variable.
        "DRAW, ONE = tf.random.Generator.from_seed(3), tf.constant(1.0)\n"
        + own(
            "def call(self, ids, training=False):\n"
            "        noise = DRAW.normal([1]) + keras.random.normal([1])\n"
            "        return super().call(ids) * ONE + noise"
        ),
    ],
)
@pytest.mark.rotates(turns=3)
def test_what_changes_nothing_is_taken(text: str, make_spec: Any, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    run_local(module_with(tmp_path / "zoo", text, make_spec), tmp_path / "out", events.append)
    assert events[-1]["steps"] == 2


def test_what_a_model_adds_to_the_loss_counts(make_spec: Any, tmp_path: Path) -> None:
    """Regularizers, activity regularizers and ``add_loss`` are part of the training loss."""
    plain = own("def call(self, ids, training=False): return super().call(ids) * 0.0")
    added = own(
        "def call(self, ids, training=False):\n"
        "        self.add_loss(tf.constant(7.0))\n"
        "        return super().call(ids) * 0.0"
    )
    losses = []
    for number, text in enumerate((plain, added)):
        events: list[dict[str, Any]] = []
        spec = module_with(tmp_path / f"zoo{number}", text, make_spec)
        run_local(spec, tmp_path / "out", events.append)
        losses.append(next(e["loss"] for e in reversed(events) if e["event"] == "progress"))
    assert losses[1] - losses[0] == pytest.approx(7.0, abs=1e-5)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("lambda epoch: 0.5 / (epoch + 1)", (0.5, 0.25)), ("lambda epoch, rate: rate * 0.1", (0.01, 0.001))],
)
async def test_keras_schedules_go_by_epoch(schedule: str, rates: Any, make_spec: Any, tmp_path: Path) -> None:
    text = callbacks(f"[keras.callbacks.LearningRateScheduler({schedule})]")
    made = module_with(tmp_path / "zoo", text, make_spec, num_epochs=2, use_async=False)
    spec = type(made).from_mapping(made.to_mapping() | {"max_steps": 0, "export_formats": "keras"})
    await asyncio.to_thread(run_local, spec, tmp_path / "out", lambda event: None)
    master, parameters = FakeMaster(spec, tmp_path), MemoryParameters()
    await master.start()
    add_training(master, spec, epochs=2)
    await work(master, parameters)
    await master.stop()
    assert not master.failures
    used = [rate for _, _, rate in parameters.pushes]
    assert used == pytest.approx([rates[0]] * 19 + [rates[1]] * 19)
    model = keras.models.load_model(tmp_path / "out" / "model.keras", compile=False)
    for variable in model.weights:
        np.testing.assert_allclose(parameters.dense[variable.path], variable.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", ["update_step", "apply"])  # its own, and one that it inherits
def test_an_update_that_was_replaced_in_the_class_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_optimizer(keras.optimizers.Adam())
    plain = getattr(keras.optimizers.Adam, name)
    monkeypatch.setattr(keras.optimizers.Adam, name, lambda self, *given: plain(self, *given))
    with pytest.raises(UserCodeError, match=f"the optimizer Adam, whose {name} the module replaced"):
        check_optimizer(keras.optimizers.Adam())


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "RMSprop", "Ftrl"])
def test_optimizers_of_older_keras_are_as_keras_wrote_them(name: str) -> None:
    assert _replaced(getattr(tf_keras.optimizers, name)()) == []
    assert _replaced(getattr(tf_keras.optimizers.legacy, name)()) == []


def test_early_stopping_of_keras_becomes_ours() -> None:
    given = [keras.callbacks.EarlyStopping("val_auc", patience=0, min_delta=-0.5), SavedModelExporter()]
    assert translate_callbacks(given) == [EarlyStopping("auc", 1, "max", 0.5), SavedModelExporter()]
    assert translate_callbacks([keras.callbacks.EarlyStopping(patience=4)]) == [EarlyStopping("loss", 4, "min", 0.0)]
    assert translate_callbacks([keras.callbacks.EarlyStopping("val_x", mode="max")]) == [
        EarlyStopping("x", 1, "max", 0.0)
    ]


def test_what_keeps_the_best_model_in_keras_does_so_here() -> None:
    given = [
        keras.callbacks.EarlyStopping("val_auc", patience=2, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint("/tmp/no.keras", "val_auc", save_best_only=True),
    ]
    found = translate_callbacks(given)
    assert found == [EarlyStopping("auc", 2, "max", 0.0, True), KeepBest("auc", "max")]
    assert declared_rules(found).keep_best == BestEvaluation("auc", "max")
    with pytest.raises(UserCodeError, match="by 'auc' and by 'loss'"):
        declared_rules([*found, KeepBest()])
    with pytest.raises(UserCodeError, match="does not say whether more is better"):
        translate_callbacks([keras.callbacks.EarlyStopping("val_x")])


def _classes(namespace: Any) -> Iterator[str]:
    return (name for name, value in vars(namespace).items() if inspect.isclass(value) and not name.startswith("_"))


def _hooks(kind: type) -> Iterator[str]:
    """What a subclass may define: methods and properties."""
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        if not name.startswith("_") and (callable(value) or isinstance(value, property | classmethod | staticmethod)):
            yield name


def _options(module: Any) -> Iterator[str]:
    for row in TABLE:
        if row.subject is Subject.OPTIMIZER and row.verdict is not Verdict.REFUSED:
            for name in row.names:
                parameters = inspect.signature(getattr(module.optimizers, name).__init__).parameters
                yield from (p for p in parameters if p not in ("self", "kwargs"))


@pytest.mark.parametrize("module", [keras, tf_keras], ids=["Keras 3", "Keras 2"])
@pytest.mark.parametrize(
    ("subject", "names"),
    [
        (Subject.MODEL, lambda module: [*_hooks(module.Model), *_hooks(module.layers.Layer)]),
        (Subject.OPTIMIZER, lambda module: _classes(module.optimizers)),
        (Subject.OPTION, _options),
        (Subject.CALLBACK, lambda module: _classes(module.callbacks)),
    ],
    ids=["models", "optimizers", "options", "callbacks"],
)
def test_everything_that_keras_offers_has_a_row(module: Any, subject: Subject, names: Any) -> None:
    missing = sorted({name for name in names(module) if find(subject, name) is None})
    assert not missing, f"say in elasticdl_core.contract what becomes of {missing}"


def test_every_entry_has_a_row() -> None:
    missing = [
        name for name in ModelModule.__dataclass_fields__ if name not in ("path", "roots", "has", "taken_names")
    ]
    subjects = (Subject.ENTRY, Subject.TORCH_ENTRY)
    assert not [name for name in missing if not any(find(subject, name) for subject in subjects)]


def test_rows_are_complete() -> None:
    pairs = [(row.subject, name) for row in TABLE for name in row.names]
    assert len(pairs) == len(set(pairs))
    assert all(row.fix for row in TABLE if row.verdict is Verdict.REFUSED)
    assert not any(row.fix for row in TABLE if row.verdict is not Verdict.REFUSED)
