"""PyTorch models train alike in one process and with parameter servers, however their rows are looked up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.local import run_local
from elasticdl_worker.loop import ExitReason
from elasticdl_worker.trainers.torch.implementation import TorchFramework
from tests.fakes.master import FakeMaster
from tests.fakes.parameters import MemoryParameters
from tests.unit.worker.test_ps_training import add_training, traced, work

pytestmark = pytest.mark.unit


async def trained(spec: Any, folder: Path, epochs: int = 2) -> tuple[FakeMaster, MemoryParameters]:
    master, parameters = FakeMaster(spec, folder), MemoryParameters()
    await master.start()
    records = add_training(master, spec, epochs=epochs)
    try:
        assert await work(master, parameters, framework=TorchFramework()) is ExitReason.FINISHED
    finally:
        await master.stop()
    assert sum(r.records for r in master.reports) == records
    return master, parameters


def locally(spec: Any, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    run_local(spec, folder, events.append)
    return safetensors.torch.load_file(folder / "model.safetensors"), events


MODELS = {
    "two tables": ({"model_def": "clicks.deepfm"}, {"wide", "deep"}),
    "padding": ({"model_def": "clicks.deepfm", "model_params": {"padding_idx": 5}}, {"wide", "deep"}),
    "sparse": ({"model_def": "clicks.deepfm", "model_params": {"sparse": True}}, {"wide", "deep"}),
    "in the model": ({"model_def": "clicks.deepfm", "embedding_threshold_bytes": 1 << 20}, set()),
    "bags": ({"model_def": "clicks.bags"}, {"sum", "mean"}),
    "tied": ({"model_def": "clicks.tied"}, set()),
    "open": ({"model_def": "clicks.open_tables"}, {"one", "bag"}),
    "autocast": ({"model_def": "clicks.deepfm", "autocast": "bfloat16"}, {"wide", "deep"}),
    "looked up by the ids": ({"model_def": "more.sometimes"}, {"embedding", "other"}),
    "clipped": ({"model_def": "clicks.deepfm", "callbacks": "more.clipping"}, {"wide", "deep"}),
}


@pytest.mark.parametrize("name", MODELS)
async def test_one_process_and_parameter_servers_give_the_same_weights(
    name: str, make_spec: Any, tmp_path: Path
) -> None:
    fields, tables = MODELS[name]
    spec = make_spec(num_epochs=2, **fields)
    _, parameters = await trained(spec, tmp_path / "cluster")
    assert parameters.rows.keys() == tables
    assert parameters.version == 2 * 19
    local, events = locally(spec, tmp_path / "local")
    assert events[-1]["steps"] == 2 * 19
    tolerance = 2e-3 if name == "autocast" else 1e-5
    for key, value in parameters.dense.items():
        np.testing.assert_allclose(value, local[key].numpy(), atol=tolerance, err_msg=key)
    for table, rows in parameters.rows.items():
        assert rows
        matrix = local[f"{table}.weight"].numpy()
        if name == "open":
            assert len(matrix) == 0
            index = sorted(parameters.rows).index(table)
            saved = np.load(tmp_path / "local" / f"table-{index}.npz")
            own = dict(zip(saved["ids"].tolist(), saved["vectors"], strict=True))
            assert own.keys() == rows.keys()
        else:
            own = dict(enumerate(matrix))
        for number, row in rows.items():
            np.testing.assert_allclose(row, own[number], atol=tolerance, err_msg=f"{table} {number}")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_compiled_model_trains_and_one_that_cannot_be_compiled_trains_without(
    fails: bool, make_spec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler itself takes half a minute: a model that it gives, and an error of its own, in its place."""
    calls = []

    def compile_model(net: torch.nn.Module, **options: Any) -> Any:
        def run(*features: Any) -> Any:
            calls.append(net(*features))
            if fails:
                raise RuntimeError("cannot compile this")
            return calls[-1]

        return run

    monkeypatch.setattr(torch, "compile", compile_model)
    _, compiled = await trained(make_spec(torch_compile="on"), tmp_path / "compiled", epochs=1)
    assert len(calls) == (1 if fails else 19)
    _, plain = await trained(make_spec(), tmp_path / "plain", epochs=1)
    assert calls
    for name, value in plain.dense.items():
        np.testing.assert_allclose(compiled.dense[name], value, atol=1e-6, err_msg=name)


async def test_every_record_is_trained_on_once_with_pulls_that_run_ahead(make_spec: Any, tmp_path: Path) -> None:
    spec = make_spec(num_epochs=2, max_staleness=2, shuffle=True)
    await trained(spec, tmp_path)
    assert sum(line["end"] - line["start"] for line in traced(tmp_path)) == 1200


async def test_groups_of_minibatches_move_rows_and_weights_in_between(make_spec: Any, tmp_path: Path) -> None:
    """Of plain SGD, four minibatches with local updates are what four updates are."""
    spec = make_spec(num_epochs=1, model_def="clicks.bags", get_model_steps=4)
    _, parameters = await trained(spec, tmp_path / "cluster", epochs=1)
    assert parameters.version == 5
    local, _ = locally(make_spec(num_epochs=1, model_def="clicks.bags"), tmp_path / "local")
    for key, value in parameters.dense.items():
        np.testing.assert_allclose(value, local[key].numpy(), atol=1e-5, err_msg=key)
    for number, row in parameters.rows["sum"].items():
        np.testing.assert_allclose(row, local["sum.weight"][number].numpy(), atol=1e-5)


REFUSED = {
    "more.renorm": "max_norm",
    "more.random_ids": "not the same when they are computed again",
    "more.uses_weight": "uses the weight of a large embedding itself",
    "more.no_module": "returned a function",
}


@pytest.mark.parametrize("model", REFUSED)
async def test_what_cannot_be_trained_on_parameter_servers_is_refused_by_name(
    model: str, make_spec: Any, tmp_path: Path
) -> None:
    master, parameters = FakeMaster(make_spec(model_def=model), tmp_path), MemoryParameters()
    await master.start()
    add_training(master, master.spec)
    try:
        with pytest.raises(UserCodeError, match=REFUSED[model]) as raised:
            await work(master, parameters, framework=TorchFramework())
        assert raised.value.fix
    except BaseException:
        assert master.failures if hasattr(master, "failures") else True
        raise
    finally:
        await master.stop()
