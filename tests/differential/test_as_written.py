"""Modules as people write them end as the plain framework does over the same records, and alike in all ways."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elasticdl.callbacks import GradientClipping
from tests.differential.data import MINIBATCH, NAMES, table
from tests.differential.driver import BASE, Bench, Outcome, Row, differences
from tests.differential.written import (
    keras_modules,
    keras_practices,
    keras_situations,
    torch_modules,
    torch_practices,
    torch_situations,
)
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]
SEED, EPOCHS = BASE["seed"], BASE["num_epochs"]
CLOSE = 1e-5
TORCH = {**torch_modules.MODULES, **torch_situations.MODULES, **torch_practices.MODULES}
KERAS = {**keras_modules.MODULES, **keras_situations.MODULES, **keras_practices.MODULES}
WHOLE = {
    "a_residual_net_with_batch_norm",
    "spectral_norm",
    "gradients_clipped_by_hooks",
    "a_layer_that_averages",
    "what_is_added_is_a_sum",
    "overlaps_of_the_whole_minibatch",
    "sixteen_bits_within",
    "experts_that_are_balanced",
}
"""Those in which parts of a minibatch are not the minibatch: a group computes each as a whole."""
ROUGH = {"sixteen_bits_within": 2e-3}
"""Compiled and by operations they are rounded in other places."""
METADATA = SimpleNamespace(column_names=NAMES)
Values = dict[str, np.ndarray[Any, Any]]


def _defined(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "plain"}
    exec(compile(source, "plain", "exec"), names)
    return names


def plain_torch(source: str) -> Values:
    """The state of the model that a plain loop trains."""
    import torch
    from torch.utils.data import default_collate

    torch.manual_seed(SEED)
    module = _defined(source)
    records = [dict(zip(NAMES, record, strict=True)) for record in table()]
    samples = list(module["feed"](iter(records), "training", METADATA))
    collate = module.get("collate", default_collate)
    batches = [collate(samples[at : at + MINIBATCH]) for at in range(0, len(samples), MINIBATCH)]
    torch.manual_seed(SEED)
    model = module["forward"]()
    call = (lambda x: model(**x)) if isinstance(batches[0][0], dict) else model
    if any(isinstance(one, torch.nn.UninitializedParameter) for one in model.parameters()):
        with torch.no_grad():
            call(batches[0][0])
    made = module["optimizer"]
    given = made(model) if made.__code__.co_argcount else made()
    make, plan = given if isinstance(given, tuple) else (given, None)
    optimizer = make if isinstance(make, torch.optim.Optimizer) else make(model.parameters())
    scheduler = None if plan is None else plan(optimizer)
    clipping = next((one for one in module.get("callbacks", list)() if isinstance(one, GradientClipping)), None)
    schedule = module.get("rate")
    model.train()
    for step, (features, labels) in enumerate(batches * EPOCHS):
        if schedule is not None:
            for group in optimizer.param_groups:
                group["lr"] = schedule(step)
        optimizer.zero_grad()
        module["loss"](labels, call(features)).backward()
        if clipping is not None and clipping.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clipping.max_norm, clipping.norm_type)
        if clipping is not None and clipping.clip_value is not None:
            torch.nn.utils.clip_grad_value_(model.parameters(), clipping.clip_value)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def plain_keras(source: str, local: Outcome) -> tuple[Values, Values]:
    """The weights that a plain loop ends with, and those that the local run exported."""
    import tensorflow as tf

    def make() -> tuple[dict[str, Any], Any]:
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(SEED)
        module = _defined(source)
        tf.keras.utils.set_random_seed(SEED)
        return module, module["forward"]()

    module, model = make()
    optimizer = module["optimizer"]()
    data = module["feed"](tf.data.Dataset.from_tensor_slices(np.array(table())), "training", METADATA)
    for features, labels in data.batch(MINIBATCH).repeat(EPOCHS):
        with tf.GradientTape() as tape:
            predictions = model(features, training=True)
            loss = tf.add_n([module["loss"](labels, predictions), *model.losses])
        # Keras' optimizers treat an id that a minibatch has twice as two gradients; ours is that of the row.
        gradients = map(tf.convert_to_tensor, tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    saved = local.output / "plain.weights.h5"
    model.save_weights(saved)
    both = []
    for file in (
        saved,
        local.output / "model.keras",
    ):  # some layers save others than they train, as those of low rank
        _, twin = make()
        twin(features)
        twin.load_weights(file)
        both.append({f"weight {n}": one for n, one in enumerate(twin.get_weights())})
    return both[0], both[1]


def _assert_close(found: Values, expected: Values, close: float = CLOSE) -> None:
    assert found.keys() >= expected.keys()
    for name, value in expected.items():
        scale = max(1.0, float(np.abs(value).max(initial=0.0))) if value.dtype.kind == "f" else 1.0
        np.testing.assert_allclose(found[name], value, rtol=0, atol=close * scale, err_msg=name)


def _assert_alike(bench: Bench, row: Row, local: Outcome) -> None:
    assert differences(row, local, bench.cluster(row, workers=1)) == []
    parts = 1 if row.name.removeprefix("written_") in WHOLE else 2
    threads = max(1, len(os.sched_getaffinity(0)) // 2)  # a process cannot change TensorFlow's once it has begun
    assert differences(row, local, bench.group(row, microbatches=parts, worker_threads=threads)) == []


@NEEDS_TORCH
@pytest.mark.parametrize("name", TORCH)
def test_torch_as_written(bench: Bench, name: str) -> None:
    source = torch_modules.HEAD + TORCH[name]
    close = ROUGH.get(name, CLOSE)
    row = Row(f"written_{name}", source, "written", {"export_formats": "safetensors"}, tolerance=close)
    local = bench.local(row)
    assert local.error == ("", "")
    _assert_close(local.weights, plain_torch(source), close)
    _assert_alike(bench, row, local)


@pytest.mark.parametrize("name", KERAS)
def test_keras_as_written(bench: Bench, name: str) -> None:
    source = keras_modules.HEAD + KERAS[name]
    close = ROUGH.get(name, CLOSE)
    row = Row(f"written_{name}", source, "written", tolerance=close)
    local = bench.local(row)
    assert local.error == ("", "")
    expected, found = plain_keras(source, local)
    _assert_close(found, expected, close)
    _assert_alike(bench, row, local)


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        *(pytest.param("torch", name, marks=NEEDS_TORCH) for name in TORCH),
        *(("keras", name) for name in KERAS),
    ],
)
def test_rounds_of_what_was_written(bench: Bench, framework: str, name: str) -> None:
    """Across tasks and within an epoch, by ``--local`` as by servers; or refused in the same words."""
    heads, modules = {"torch": (torch_modules, TORCH), "keras": (keras_modules, KERAS)}[framework]
    formats = {"export_formats": "safetensors"} if framework == "torch" else {}
    spec = {"use_async": False, "grads_to_wait": 4, **formats}
    row = Row(f"rounds_{name}", heads.HEAD + modules[name], "written", spec, tolerance=ROUGH.get(name, CLOSE))
    local, servers = bench.local(row), bench.cluster(row, workers=1)
    if local.error != ("", ""):
        assert servers.error == local.error
    else:
        assert differences(row, local, servers) == []


@NEEDS_TORCH
def test_hooks_that_clip_gradients_are_refused_in_parts(bench: Bench) -> None:
    source = torch_modules.HEAD + TORCH["gradients_clipped_by_hooks"]
    row = Row("written_hooks", source, "written", {"export_formats": "safetensors"})
    assert "does not grow as the loss does" in bench.group(row).error[0]


@NEEDS_TORCH
@pytest.mark.parametrize("name", torch_practices.REFUSED)
def test_parameters_of_other_types_are_refused_alike(bench: Bench, name: str) -> None:
    source = torch_modules.HEAD + torch_practices.REFUSED[name]
    row = Row(f"written_{name}", source, "written", {"export_formats": "safetensors"}, refused="is of torch.")
    assert bench.verdict(row) == []
    assert row.refused in bench.group(row).error[0]


def test_what_a_keras_model_adds_otherwise_than_its_loss_is_refused_in_parts(bench: Bench) -> None:
    row = Row("written_adds", keras_modules.HEAD + KERAS["what_is_added_is_a_sum"], "written")
    assert "no mean over records" in bench.group(row).error[0]


def test_a_keras_layer_that_assigns_its_trained_kernel_is_refused_alike(bench: Bench) -> None:
    row = Row("written_norm", keras_modules.HEAD + keras_situations.SPECTRAL, "written", refused="would be undone")
    assert bench.verdict(row) == []
    assert row.refused in bench.group(row).error[0]
