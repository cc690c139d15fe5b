"""Training loops of one's own in one process: equal to plain PyTorch, counted exactly, and refused where they err."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elasticdl.own_loop import FedMicrobatch
from elasticdl.torch.distributed import OptimizedState
from elasticdl_core.errors import ElasticDLError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_worker.group.state_files import CheckpointPart
from elasticdl_worker.own_loop.bridge import LoopBridge
from elasticdl_worker.own_loop.local import run_local_script
from elasticdl_worker.own_loop.records import ScriptRecords
from elasticdl_worker.own_loop.replica import ScriptReplica

pytestmark = pytest.mark.timeout(120)
MODEL = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import elasticdl.torch as et

torch.manual_seed(7)
x = torch.arange(50 * 3, dtype=torch.float32).reshape(50, 3) / 150
y = (x @ torch.tensor([1.0, -2.0, 0.5])).unsqueeze(1)
model = nn.Linear(3, 1)
"""
LOOP = """
data = et.ElasticDataset(TensorDataset(x, y))
loader = DataLoader(data, batch_size=8)
seen = []
def train():
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        seen.extend(round(one * 50) for one in a[:, 0].tolist())
"""
END = """
et.run(train)
torch.save({"seen": torch.tensor(seen), **model.state_dict()}, et.output_dir() / "found.pt")
"""
Run = Callable[..., tuple[dict[str, Any], dict[str, torch.Tensor]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a script in this process: its last event, with the last loss that was shown, and what it saved."""

    def go(script: str, **fields: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        (tmp_path / "script.py").write_text(textwrap.dedent(script))
        base = {"model_zoo": str(tmp_path), "model_def": "script.__main__", "minibatch_size": 8, "shuffle": False}
        events: list[Any] = []
        run_local_script(JobSpec.from_mapping({**base, **fields}), tmp_path / "out", events.append)
        saved = tmp_path / "out" / "found.pt"
        shown = [event["last_loss"] for event in events if event["event"] == "progress"]
        return {**events[-1], "last_loss": shown[-1] if shown else None}, torch.load(
            saved, weights_only=True
        ) if saved.is_file() else {}

    return go


def plain(make: Callable[[torch.nn.Module], torch.optim.Optimizer], batch: int, epochs: int) -> dict[str, Any]:
    """The same model trained by PyTorch alone."""
    names: dict[str, Any] = {}
    exec(MODEL, names)
    optimizer = make(names["model"])
    for _ in range(epochs):
        for start in range(0, 50, batch):
            optimizer.zero_grad()
            chosen = slice(start, start + batch)
            torch.nn.functional.mse_loss(names["model"](names["x"][chosen]), names["y"][chosen]).backward()
            optimizer.step()
    return dict(names["model"].state_dict())


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_an_own_loop_equals_plain_pytorch_whatever_makes_the_batch(run: Run, microbatches: int) -> None:
    wrapped = (
        "optimizer = et.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=0.01), "
        f"global_batch_size={8 * microbatches}, model=model)\n"
    )
    done, found = run(
        MODEL + wrapped + LOOP + END, minibatch_size=8 * microbatches, microbatches=microbatches, num_epochs=3
    )
    assert done["records"] == 150
    assert sorted(found.pop("seen").tolist()) == sorted([*range(50)] * 3)
    expected = plain(lambda model: torch.optim.Adam(model.parameters(), lr=0.01), 8 * microbatches, 3)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-5, atol=1e-6)


def test_a_hook_clips_the_gradient_of_an_update(run: Run) -> None:
    """As the document has it: of all its minibatches together."""
    make = "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"
    clip = "nn.utils.clip_grad_norm_(model.parameters(), 0.1)"
    hook = f"optimizer = et.distributed_optimizer({make})\ndef clip(*_):\n    {clip}\n"
    hook += "optimizer.register_step_pre_hook(clip)\n"
    _, found = run(MODEL + hook + LOOP + END, minibatch_size=16, microbatches=2)

    def clipped(model: torch.nn.Module) -> torch.optim.Optimizer:
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def clip(*_: Any) -> None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        inner.register_step_pre_hook(clip)
        return inner

    expected = plain(clipped, 16, 1)
    torch.testing.assert_close(found["weight"], expected["weight"], rtol=1e-5, atol=1e-6)


def test_parameters_without_gradients_are_left_alone(run: Run) -> None:
    """Frozen ones, and those that no record uses, have neither decay nor momentum, as in plain PyTorch."""
    more = (
        MODEL
        + """
frozen, late = nn.Linear(2, 2), nn.Linear(3, 1)
frozen.weight.requires_grad_(False)
model.kept = frozen
model.late = late
def forward(a):
    return nn.Linear.forward(model, a) + (late(a) if len(seen) >= 24 else 0)
"""
    )
    make = "torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)"
    loop = LOOP.replace("model(a)", "forward(a)")
    _, found = run(more + f"optimizer = et.distributed_optimizer({make}, model=model)\n" + loop + END)
    names: dict[str, Any] = {"seen": []}
    exec(more + f"optimizer = {make}\n", names)
    before = {name: value.clone() for name, value in names["model"].state_dict().items()}
    for start in range(0, 50, 8):
        names["optimizer"].zero_grad()
        a, b = names["x"][start : start + 8], names["y"][start : start + 8]
        torch.nn.functional.mse_loss(names["forward"](a), b).backward()
        names["optimizer"].step()
        names["seen"].extend(a)
    for name, values in names["model"].state_dict().items():
        torch.testing.assert_close(found[name], values, rtol=1e-5, atol=1e-6)
        assert torch.equal(values, before[name]) == name.startswith("kept"), name


def test_records_count_when_they_are_committed(run: Run) -> None:
    own = LOOP.replace("optimizer.step()\n", "optimizer.step()\n        data.commit(loss)\n")
    done, found = run(
        MODEL + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n" + own + END,
        num_epochs=2,
        shuffle=True,
    )
    assert done["records"] == 100
    assert done["reason"] == "every record was processed"
    assert sorted(found["seen"].tolist()[:50]) == [*range(50)], "an epoch is a pass over all of them"
    assert found["seen"].tolist()[:50] != [*range(50)]


def test_records_that_a_loop_took_and_left_come_again(run: Run) -> None:
    loop = LOOP.replace("        optimizer.zero_grad()\n", "        if len(seen) == 24 and not left:\n"
                        "            left.append(a)\n            break\n        optimizer.zero_grad()\n")  # fmt: skip
    optimizer = "left = []\noptimizer = et.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))\n"
    done, found = run(MODEL + optimizer + loop + END)
    assert done["records"] == 50
    assert found["seen"].tolist() == [*range(50)]


def test_batches_of_a_loop_that_names_the_update_are_parts_of_it(run: Run) -> None:
    made = "torch.optim.SGD(model.parameters(), lr=0.1)"
    optimizer = f"optimizer = et.distributed_optimizer({made}, global_batch_size=8)\n"
    loop = LOOP.replace("batch_size=8", "batch_size=4")
    done, found = run(MODEL + optimizer + loop + END, num_epochs=2)
    assert (done["records"], done["steps"]) == (100, 14)
    expected = plain(lambda model: torch.optim.SGD(model.parameters(), lr=0.1), 8, 2)
    torch.testing.assert_close(found["weight"], expected["weight"], rtol=1e-5, atol=1e-6)


def test_a_scheduler_that_the_script_steps_changes_the_rate_of_the_updates(run: Run) -> None:
    optimizer = """
optimizer = et.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.2))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
"""
    loop = LOOP + "    scheduler.step()\n"
    _, found = run(MODEL + optimizer + loop + END, num_epochs=3)

    def scheduled(model: torch.nn.Module) -> torch.optim.Optimizer:
        inner = torch.optim.SGD(model.parameters(), lr=0.2)
        count = iter(range(1000))
        inner.register_step_pre_hook(
            lambda *_: inner.param_groups[0].update(lr=0.2 * 0.5 ** (next(count) // 7))  # 7 updates an epoch
        )
        return inner

    expected = plain(scheduled, 8, 3)
    torch.testing.assert_close(found["weight"], expected["weight"], rtol=1e-4, atol=1e-6)


def test_the_records_of_the_job_s_data_are_what_the_readers_give(run: Run, tmp_path: Path) -> None:
    (tmp_path / "numbers.csv").write_text("a,b\n" + "".join(f"{n},{2 * n}\n" for n in range(20)))
    script = """
import torch, elasticdl.torch as et
data = et.ElasticDataset(transform=lambda record: (int(record["a"]), int(record["b"])))
seen = []
def train():
    for pair in data:
        seen.append(pair)
        data.commit()
et.run(train)
torch.save({"seen": torch.tensor(seen)}, et.output_dir() / "found.pt")
"""
    done, found = run(script, training_data=str(tmp_path / "numbers.csv"))
    assert done["records"] == 20
    assert found["seen"].tolist() == [[n, 2 * n] for n in range(20)]


WRAPPED = "optimizer = et.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))\n"
MISTAKES = {
    "the script has batches of 16 records, and the job of 8: an update of 8 records (--minibatch_size 8)": (
        MODEL + WRAPPED + LOOP.replace("batch_size=8", "batch_size=16") + END,
        {},
    ),
    "the script has batches of 4 records, and the job of 8": (
        MODEL + WRAPPED + LOOP.replace("batch_size=8", "batch_size=4") + END,
        {},
    ),
    "the script has batches of 8 records, and the job of 4: an update of 8 records (--minibatch_size 8) in 2 parts": (
        MODEL + WRAPPED + LOOP + END,
        {"microbatches": 2},
    ),
    "give `elasticdl run` --minibatch_size 32 --microbatches 2": (
        MODEL + WRAPPED + LOOP.replace("batch_size=8", "batch_size=16") + END,
        {"minibatch_size": 16, "max_workers": 2},
    ),
    "takes more than the 8 records": (
        MODEL
        + WRAPPED
        + LOOP.replace("        optimizer.step()\n", "        if n % 3 == 0: optimizer.step()\n").replace(
            "for a, b in loader", "for n, (a, b) in enumerate(loader)"
        )
        + END,
        {},
    ),
    "global batch of 24 records": (
        MODEL + WRAPPED.replace("lr=0.1))", "lr=0.1), global_batch_size=24)") + LOOP + END,
        {"microbatches": 2},
    ),
    "the script has ended and took no records": (MODEL, {}),
    "the script has ended, and records are left": (MODEL + WRAPPED + LOOP + "train()\n", {"num_epochs": 3}),
    "records are left to be trained on": (
        MODEL + WRAPPED + LOOP + "train()\net.output_dir()\n",
        {"num_epochs": 3},
    ),
    "takes records again and again": (
        MODEL + WRAPPED + LOOP.replace("        optimizer.step()\n", "        break\n") + END,
        {},
    ),
    "a second optimizer": (MODEL + WRAPPED + WRAPPED + LOOP + END, {}),
    "not among the optimizer's parameters": (
        MODEL + WRAPPED.replace("model.parameters(), lr=0.1)", "[model.weight], lr=0.1), model=model") + LOOP + END,
        {},
    ),
    "could not be tried": (MODEL + WRAPPED.replace("SGD", "LBFGS") + LOOP + END, {}),
    "no record was taken since": (
        MODEL + WRAPPED + LOOP.replace("optimizer.step()\n", "optimizer.step(); optimizer.step()\n") + END,
        {},
    ),
    "the job names no data": (MODEL + WRAPPED + LOOP.replace("TensorDataset(x, y)", "") + END, {}),
    "called sys.exit(3)": ("import sys, elasticdl\nsys.exit(3)\n", {}),
    "takes no record": (MODEL + WRAPPED + LOOP.replace("for a, b in loader", "for a, b in []") + END, {}),
    "in another thread": (
        MODEL + WRAPPED + LOOP + "import threading\ndef elsewhere():\n    one = threading.Thread(target=train)\n"
        "    one.start()\n    one.join()\nthreading.excepthook = lambda _: None\net.run(elsewhere)\n",
        {},
    ),
    "drop_last": (MODEL + WRAPPED + LOOP.replace("batch_size=8", "batch_size=8, drop_last=True") + END, {}),
    "a group of parameters was added": (
        MODEL
        + WRAPPED
        + LOOP.replace("        optimizer.step()\n", "        optimizer.add_param_group({'params': [x]})\n")
        + END,
        {},
    ),
    "a group of parameters was added to": (
        MODEL
        + "inner = torch.optim.SGD(model.parameters(), lr=0.1)\noptimizer = et.distributed_optimizer(inner)\n"
        + LOOP.replace(
            "        optimizer.step()\n", "        inner.add_param_group({'params': [x]}); optimizer.step()\n"
        )
        + END,
        {},
    ),
    "raised ZeroDivisionError": (MODEL + WRAPPED + LOOP.replace("seen.extend(", "1 / 0; seen.extend(") + END, {}),
    "read in the process that trains": (
        MODEL + WRAPPED + LOOP.replace("batch_size=8", "batch_size=8, num_workers=1") + END,
        {},
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_of_scripts_are_named(run: Run, message: str) -> None:
    script, fields = MISTAKES[message]
    with pytest.raises(ElasticDLError) as caught:
        run(script, **fields)
    assert message in caught.value.message + caught.value.fix
    assert "Traceback" not in caught.value.message
    if isinstance(caught.value, UserCodeError):
        assert caught.value.fix
    if not caught.value.message.startswith("the script has ended"):
        assert "script.py:" in caught.value.message, "where it is"


def test_without_a_launcher_the_script_says_how_to_start_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(MODEL + LOOP)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert "elasticdl run SCRIPT" in done.stderr


def test_state_goes_over_exactly(tmp_path: Path) -> None:
    """What a newcomer, or a checkpoint, gets of an optimizer is all of it."""
    from elasticdl.torch.distributed import OptimizedState

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer, OptimizedState]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)
        return model, optimizer, OptimizedState(optimizer, model)

    def step(model: torch.nn.Module, state: OptimizedState) -> None:
        model.zero_grad()
        model(torch.ones(2, 4) * torch.tensor([[1.0], [2.0]])).square().sum().backward()
        arrays = [np.zeros(length, np.float32) for length in state.lengths]
        state.contribute(arrays, 2)
        state.apply(arrays, 2)

    one, _, state = made()
    first = {name: value.copy() for name, value in state.values().items()}
    step(one, state)
    step(one, state)
    other, optimizer, taken = made()
    assert {name: value.shape for name, value in state.values().items()} == {
        name: value.shape for name, value in first.items()
    }
    taken.load({name: value.copy() for name, value in state.values().items()})
    for name, value in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=0, atol=0)
    step(one, state)
    step(other, taken)
    for name, value in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=0, atol=0)
    assert json.dumps(optimizer.state_dict()["param_groups"])
    taken.load(first)
    assert not optimizer.state, "the state that it began with"


def test_a_local_run_begins_with_a_job_s_checkpoint(run: Run, tmp_path: Path) -> None:
    """And says so where there is none: it began anew without a word."""
    from elasticdl.torch.distributed import OptimizedState

    make = "torch.optim.Adam(model.parameters(), lr=0.01)"
    script = MODEL + f"optimizer = et.distributed_optimizer({make}, model=model)\n" + LOOP + END
    names: dict[str, Any] = {}
    exec(MODEL + f"optimizer = {make}\n", names)
    spec = JobSpec(model_zoo=str(tmp_path), model_def="script.__main__", minibatch_size=8)
    bridge = LoopBridge(spec, lambda: None)
    bridge.use(OptimizedState(names["optimizer"], names["model"]))
    replica = ScriptReplica(spec, bridge, ScriptRecords(spec, tmp_path, 50))
    for updates in range(5):
        gradients = [np.ones(length, np.float32) * (updates + 1) for length in replica.lengths]
        replica.apply([gradients[0], np.zeros_like(gradients[1]), gradients[2]], 1, 0)
    written = CheckpointPart(replica.layout, replica.state(), 0, 1, {}).write(tmp_path)
    manifest = {"version": 5, "files": [dataclasses.asdict(written)]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))

    done, found = run(script, checkpoint_dir_for_init=str(tmp_path), max_steps=3)
    assert (done["steps"], found["seen"].tolist()) == (3, [*range(24)]), "updates of its own"
    for start in range(0, 24, 8):
        names["optimizer"].zero_grad()
        a, b = names["x"][start : start + 8], names["y"][start : start + 8]
        torch.nn.functional.mse_loss(names["model"](a), b).backward()
        names["optimizer"].step()
    for name, value in names["model"].state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)

    with pytest.raises(ElasticDLError, match="there is no checkpoint in"):
        run(script, checkpoint_dir_for_init=str(tmp_path / "nowhere"))
    with pytest.raises(ElasticDLError, match="of another model"):
        run(script.replace("Adam", "SGD"), checkpoint_dir_for_init=str(tmp_path))


def test_an_update_has_the_same_rates_and_momenta_at_all_members() -> None:
    """The means of those at which its records were computed, whatever each one's scheduler did."""
    from elasticdl.torch.distributed import OptimizedState

    def made() -> tuple[torch.nn.Parameter, torch.optim.Optimizer, OptimizedState]:
        parameter = torch.nn.Parameter(torch.ones(3))
        groups = [{"params": [parameter]}, {"params": [torch.nn.Parameter(torch.ones(1))], "betas": (0.5, 0.5)}]
        optimizer = torch.optim.AdamW(groups, lr=0.25, betas=(0.75, 0.875))
        return parameter, optimizer, OptimizedState(optimizer, None)

    members = [made(), made()]
    members[0][1].param_groups[0].update(lr=0.5, betas=(0.25, 0.875), initial_lr=9.0)
    sums = [np.zeros(length, np.float32) for length in members[0][2].lengths]
    for parameter, _, state in members:
        parameter.grad = torch.ones(3)
        state.contribute(sums, 4)
    for _, _, state in members:
        state.apply(sums, 8)
    for _, optimizer, _ in members:
        first, second = optimizer.param_groups
        assert (first["lr"], first["betas"]) == (0.375, (0.5, 0.875))
        assert (second["lr"], second["betas"]) == (0.25, (0.5, 0.5))
        assert first["amsgrad"] is False
    torch.testing.assert_close(members[0][0], members[1][0], rtol=0, atol=0)


def test_a_schedule_may_ask_for_the_job_s_updates(run: Run) -> None:
    scheduled = """
optimizer = et.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.2))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5 ** data.updates)
updates = []
"""
    step = "        optimizer.step()\n"
    loop = LOOP.replace(step, step + "        updates.append(data.updates)\n        scheduler.step()\n")
    found_too = '"updates": torch.tensor(updates), "rate": torch.tensor(scheduler.get_last_lr()), "seen"'
    _, found = run(MODEL + loop + scheduled + END.replace('"seen"', found_too), minibatch_size=16, microbatches=2)
    assert found["updates"].tolist() == [0, 1, 1, 2, 2, 3, 4]
    assert found["rate"].item() == pytest.approx(0.2 * 0.5**4)


def test_a_newcomer_has_no_state_of_parameters_that_were_not_used_yet() -> None:
    """Or its optimizer would count one step more than the others' do."""
    from elasticdl.torch.distributed import OptimizedState

    def made() -> tuple[list[torch.nn.Parameter], OptimizedState]:
        parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
        return parameters, OptimizedState(torch.optim.AdamW(parameters, lr=0.1), None)

    def step(parameters: list[torch.nn.Parameter], state: OptimizedState, used: int) -> None:
        for one in parameters:
            one.grad = None
        sum(((one * one).sum() for one in parameters[:used]), torch.zeros(())).backward()
        arrays = [np.zeros(length, np.float32) for length in state.lengths]
        state.contribute(arrays, 1)
        state.apply(arrays, 1)

    ours, state = made()
    step(ours, state, 1)
    theirs, taken = made()
    taken.load({name: value.copy() for name, value in state.values().items()})
    for parameters, one in ((ours, state), (theirs, taken)):
        step(parameters, one, 2)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)


def test_what_is_random_does_not_depend_on_when_a_loader_was_made(run: Run) -> None:
    """Members of a group make their loaders' iterators at different minibatches."""
    optimizer = "optimizer = et.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))\n"
    dropping = MODEL.replace("nn.Linear(3, 1)", "nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1))")
    leaving = """        if len(seen) % 24 == 0 and len(seen) not in left:
            left.append(len(seen))
            break
        optimizer.zero_grad()
"""
    again = LOOP.replace("        optimizer.zero_grad()\n", leaving)
    _, expected = run(dropping + optimizer + LOOP + END, num_epochs=2)
    _, found = run(dropping + "left = []\n" + optimizer + again + END, num_epochs=2)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=0, atol=0)


LOGGED = """
def train():
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        et.log(loss=loss, rows=torch.tensor(len(a)), half=0.5)
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("microbatches", [1, 2])
def test_what_a_loop_logs_is_shown_as_that_of_the_job(run: Run, microbatches: int) -> None:
    loader = "data = et.ElasticDataset(TensorDataset(x, y))\nloader = DataLoader(data, batch_size=data.batch_size)\n"
    done, _ = run(
        MODEL + WRAPPED + loader + LOGGED + "et.run(train)\n",
        minibatch_size=8,
        microbatches=microbatches,
        max_steps=4,
    )
    assert done["training_metrics"] == {"rows": 8 / microbatches, "half": 0.5}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("        et.log(loss=loss, ", "        et.log("), "logged without the loss"),
        (("half=0.5", "half='x'"), "the logged half is no number"),
        (("        optimizer.step()", "        optimizer.step()\n        et.log(loss=loss)"), "no batch is there"),
    ],
)
def test_what_cannot_be_logged_is_refused(run: Run, change: tuple[str, str], said: str) -> None:
    loader = "loader = DataLoader(et.ElasticDataset(TensorDataset(x, y)), batch_size=8)\n"
    with pytest.raises(UserCodeError, match=said):
        run(MODEL + WRAPPED + loader + LOGGED.replace(*change) + "et.run(train)\n")


def test_a_loader_that_shuffles_leaves_it_to_the_job_and_knows_its_length(run: Run) -> None:
    script = (
        MODEL
        + WRAPPED
        + LOOP.replace("batch_size=8", "batch_size=8, shuffle=True")
        + "assert len(loader) == 7\n"
        + END
    )
    done, found = run(script, shuffle=True)
    assert done["records"] == 50
    seen = found["seen"].tolist()
    assert sorted(seen) == list(range(50)) != seen
    with pytest.raises(ElasticDLError, match="shuffle=True, and the job --no-shuffle"):
        run(script, shuffle=False)


@pytest.mark.parametrize(("bad", "how"), [(16, "goes_on"), (0, "says_so"), (16, "says_so"), (48, "says_so")])
def test_a_batch_without_a_step_is_counted_and_moves_nothing(run: Run, bad: int, how: str) -> None:
    """The first batch is compared with the job's; the last one of a pass is short, and needs the word."""
    word = "data.skip()" if how == "says_so" else "pass"
    loop = LOOP.replace(
        "        optimizer.zero_grad()",
        f"        if round(a[0, 0].item() * 50) == {bad}:\n            {word}\n            continue\n"
        "        optimizer.zero_grad()",
    )
    make = "optimizer = et.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=0.01), model=model)\n"
    done, found = run(MODEL + make + loop + END, num_epochs=2)
    assert len(found.pop("seen")) == done["records"] == 2 * (50 - (2 if bad == 48 else 8))
    assert [(one["reason"], one["records"]) for one in done["skipped"]] == [("feed", 2 * (2 if bad == 48 else 8))]
    names: dict[str, Any] = {}
    exec(MODEL, names)
    optimizer = torch.optim.Adam(names["model"].parameters(), lr=0.01)
    for start in [one for one in range(0, 50, 8) if one != bad] * 2:
        optimizer.zero_grad()
        chosen = slice(start, start + 8)
        torch.nn.functional.mse_loss(names["model"](names["x"][chosen]), names["y"][chosen]).backward()
        optimizer.step()
    for name, values in names["model"].state_dict().items():
        torch.testing.assert_close(found[name], values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cleared_last", [False, True])
@pytest.mark.parametrize("bad", [0, 8])
def test_a_step_that_a_scaler_leaves_out_is_a_batch_that_is_skipped(run: Run, bad: int, cleared_last: bool) -> None:
    """The first step, too, as with a scale that begins too large."""
    make = (
        "optimizer = et.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)\n"
        "scaler = torch.amp.GradScaler('cpu', init_scale=2.0)\n"
    )
    loop = LOOP.replace(
        "        loss.backward()\n        optimizer.step()",
        f"        if round(a[0, 0].item() * 50) == {bad}:\n            loss = loss * float('inf')\n"
        "        scaler.scale(loss).backward()\n        scaler.step(optimizer)\n        scaler.update()",
    )
    if cleared_last:
        loop = loop.replace("        optimizer.zero_grad()\n", "")
        loop = loop.replace("scaler.update()", "scaler.update()\n        optimizer.zero_grad()")
    done, found = run(MODEL + make + loop + END)
    assert done["records"] == 42
    assert all(bool(torch.isfinite(one).all()) for one in found.values())


AHEAD = """
def train():
    batches = iter(loader)
    following = next(batches, None)
    while following is not None:
        (a, b), following = following, next(batches, None)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
"""


@pytest.mark.parametrize("size", [8, 4])
def test_a_loop_that_takes_batches_ahead_is_refused(run: Run, size: int) -> None:
    optimizer = "torch.optim.SGD(model.parameters(), lr=0.1), global_batch_size=8"
    loader = f"loader = DataLoader(et.ElasticDataset(TensorDataset(x, y)), batch_size={size})\n"
    script = MODEL + f"optimizer = et.distributed_optimizer({optimizer})\n" + loader + AHEAD + END
    with pytest.raises(UserCodeError, match=f"takes more than the {size} records"):
        run(script)


def test_later_workers_know_from_the_first_that_no_batch_is_taken_ahead() -> None:
    """Their first batch may be one without a step: the job's first one has shown how the loop goes."""
    spec = JobSpec(model_zoo="zoo", model_def="script.__main__", minibatch_size=8)
    said = []
    for version, begun in [(0, ""), (3, ""), (3, "checkpoint")]:
        bridge = LoopBridge(dataclasses.replace(spec, checkpoint_dir_for_init=begun), lambda: None)
        bridge.trained = OptimizedState(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1), None)
        bridge._piece = FedMicrobatch([*range(8)], 0, True, version, 0)
        bridge._position = bridge.uncommitted = 8
        said.append(bridge._has_gone_on())
    assert said == [False, True, False]


class Counting(torch.optim.Optimizer):
    """Keeps numbers of Python's for each parameter."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is None:
                    continue
                state = self.state[one]
                state["step"], state["decay"] = state.get("step", 0) + 1, state.get("decay", 1.0) * 0.9
                state["fresh"] = False
                with torch.no_grad():
                    one -= one.grad * group["lr"] * state["decay"] / state["step"]


def test_numbers_in_the_state_of_an_optimizer_stay_numbers() -> None:
    from elasticdl.torch.distributed import OptimizedState

    def state(seed: int) -> Any:
        torch.manual_seed(seed)
        parameter = torch.nn.Parameter(torch.randn(3))
        return OptimizedState(Counting([parameter]), None), parameter

    first, _ = state(1)
    second, parameter = state(2)
    for _ in range(3):
        first.apply([np.ones(3, np.float32), np.zeros(1, np.float32), np.ones(1, np.float32)], 1)
    second.load(first.values())
    (first_state,) = first._optimizer.state.values()
    assert second._optimizer.state[parameter] == first_state
    assert {name: type(one) for name, one in first_state.items()} == {"step": int, "decay": float, "fresh": bool}
    assert [type(one) for one in second._optimizer.state[parameter].values()] == [float, bool, int]
    for name, value in first.values().items():
        np.testing.assert_array_equal(second.values()[name], value, err_msg=name)


def test_the_loss_of_a_minibatch_weighs_its_batches_by_their_records(run: Run) -> None:
    """Each batch tells its size as the loss: 4, 4 and 2 records of the last update's 10."""
    make = "torch.optim.SGD(model.parameters(), lr=0.0)"
    loop = LOOP.replace("batch_size=8", "batch_size=4").replace(
        "        loss.backward()", "        et.log(loss=float(len(a)), size=float(len(a)))\n        loss.backward()"
    )
    script = MODEL + f"optimizer = et.distributed_optimizer({make}, global_batch_size=20, model=model)\n" + loop
    done, _ = run(script + "et.run(train)\n", minibatch_size=20, log_loss_steps=1)
    assert done["steps"] == 3
    assert done["training_metrics"] == {"size": (4 * 4 + 4 * 4 + 2 * 2) / 10}
    assert done["last_loss"] == (4 * 4 + 4 * 4 + 2 * 2) / 10
