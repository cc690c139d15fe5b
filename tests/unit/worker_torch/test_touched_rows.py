"""Local updates of PyTorch models move the rows of a minibatch alone, as parameter servers do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim

from tests.unit.worker_torch.test_training import locally

pytestmark = pytest.mark.unit

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "momentum": partial(optim.SGD, lr=0.1, momentum=0.9),
    "decay": partial(optim.SGD, lr=0.1, weight_decay=0.1),
    "adam": partial(optim.Adam, lr=0.1, amsgrad=True),
    "adamw": partial(optim.AdamW, lr=0.1),
    "rmsprop": partial(optim.RMSprop, lr=0.1, momentum=0.5, centered=True),
    "adadelta": partial(optim.Adadelta, lr=0.1),
    "adamax": partial(optim.Adamax, lr=0.1),
    "nadam": partial(optim.NAdam, lr=0.1),
    "radam": partial(optim.RAdam, lr=0.1),
    "adagrad": partial(optim.Adagrad, lr=0.1, weight_decay=0.1),
}


def updated(optimizer: Callable[..., optim.Optimizer], minibatches: list[list[int]], narrowed: bool) -> Any:
    from elasticdl_worker.trainers.torch.step.touched_rows import narrowed_to

    weight = torch.nn.Parameter(torch.arange(1.0, 13.0).reshape(6, 2))
    made = optimizer([weight])
    for ids in minibatches:
        made.zero_grad()
        found = torch.tensor(ids)
        weight[found].square().sum().backward()  # type: ignore[no-untyped-call]
        if narrowed:
            with narrowed_to(weight, [found], made):
                made.step()
        else:
            made.step()
    slots = [one for one in made.state[weight].values() if one.shape == weight.shape]
    return torch.stack([weight.detach(), *slots])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_moves_the_rows_of_its_minibatch_as_ever_and_no_others(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    first, both = updated(optimizer, [[0, 1]], True), updated(optimizer, [[0, 1], [4, 2, 4]], True)
    kept, moved = [0, 1, 3, 5], [2, 4]
    assert torch.equal(both[:, kept], first[:, kept])
    plain = updated(partial(optimizer, lr=0.1), [[0, 1], [4, 2, 4]], False)
    if name not in ("decay", "adamw", "adagrad"):  # by which rows have moved in the update before
        assert torch.equal(both[:, moved], plain[:, moved])
    assert not torch.equal(plain[:, kept], first[:, kept])


@pytest.mark.parametrize(
    ("model", "tables"), [("deepfm", ("wide", "deep")), ("open_tables", ()), ("bags", ("sum", "mean"))]
)
def test_rows_that_later_minibatches_have_not_stay_as_they_are(
    model: str, tables: tuple[str, ...], make_spec: Any, tmp_path: Path
) -> None:
    data = tmp_path / "clicks.csv"
    data.write_text("0,1,2,3\n1,3,2,1\n" * 4 + "1,4,5,6\n0,6,5,4\n" * 4)
    fields = {"training_data": str(data), "minibatch_size": 8, "shuffle": False, "model_def": f"clicks.{model}"}
    spec = make_spec(optimizer_params={"momentum": 0.9}, **fields)
    whole, events = locally(spec, tmp_path / "two")
    begun, _ = locally(make_spec(optimizer_params={"momentum": 0.9}, max_steps=1, **fields), tmp_path / "one")
    assert [e["message"] for e in events if e["event"] == "started"][1].endswith(
        "torch.sgd moves those of a minibatch alone, on parameter servers and with --local; "
        "plain Keras and PyTorch move all rows in each update"
    )
    for table in tables:
        after, before = whole[f"{table}.weight"], begun[f"{table}.weight"]
        assert torch.equal(after[1:4], before[1:4])
        assert not torch.equal(after[4:7], before[4:7])
