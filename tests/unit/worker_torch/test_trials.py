"""Looks at a model, evaluations and predictions leave no trace in it, nor in the random numbers to come."""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from elasticdl_worker.trainers.torch.export.model_files import check_exportable
from elasticdl_worker.trainers.torch.model.build import BuiltModel, TorchBuildOptions, build_model
from elasticdl_worker.trainers.torch.model.state_rules import changing_state
from elasticdl_worker.trainers.torch.model.trials import find_generators, generators_kept
from elasticdl_worker.trainers.torch.step.programs import ForwardPass, StepOptions
from elasticdl_worker.user_code import ModelModule

pytestmark = pytest.mark.unit
SAMPLE = torch.arange(8.0).view(4, 2)


def module_of(net: Any, **entries: Any) -> ModelModule:
    return ModelModule(
        Path("m.py"), (), net if callable(net) and not isinstance(net, nn.Module) else lambda: net, **entries
    )


def built(net: Any) -> BuiltModel:
    return build_model(module_of(net), SAMPLE, TorchBuildOptions(1 << 40, 1))


class Remembers(nn.Module):
    """Keeps something of whatever it sees, in each way in which a module can."""

    def __init__(self, *, unlike: Any = None) -> None:
        super().__init__()
        self.out = nn.Linear(2, 1)
        self.register_buffer("largest", torch.tensor(-1.0))
        self.register_buffer("rows", torch.zeros(()), persistent=False)
        self.register_buffer("mean", torch.zeros(2))
        self.calls, self.history, self.hidden = 0, list[int](), None
        self.noise = torch.Generator().manual_seed(3)
        self.unlike = unlike

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.history.append(len(x))
        self.hidden = x.sum(1, keepdim=True) if self.hidden is None else self.hidden + x.sum(1, keepdim=True)
        self.largest.copy_(torch.maximum(self.largest, x.detach().max()))
        self.rows.data += len(x)
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        noise = torch.rand((), generator=self.noise) + torch.rand(()) + np.random.rand() + random.random()
        return self.out(x) + 0 * noise + 0 * self.hidden


def buffers_of(net: nn.Module) -> dict[str, Any]:
    return {name: buffer.tolist() for name, buffer in net.named_buffers()}


def drawn() -> list[float]:
    return [float(torch.rand(())), float(np.random.rand()), random.random()]


def test_the_look_at_a_model_leaves_nothing_in_it_and_draws_nothing() -> None:
    net, fresh = Remembers(), buffers_of(Remembers())
    model = built(lambda: net)
    assert (net.calls, net.history, net.hidden, buffers_of(net)) == (0, [], None, fresh)
    assert float(torch.rand((), generator=net.noise)) == float(
        torch.rand((), generator=torch.Generator().manual_seed(3))
    )
    torch.manual_seed(1)
    expected = float(torch.rand(()))
    built(lambda: net)
    assert float(torch.rand(())) == expected
    forward = ForwardPass(model, module_of(net, loss=lambda labels, p: p.mean()), StepOptions())
    changing_state(model, SAMPLE)
    assert (net.calls, net.history, net.hidden, buffers_of(net)) == (0, [], None, fresh)
    assert changing_state(model, SAMPLE) == {"largest", "mean"}
    forward.train(torch.ones(8, 2), None, None)  # more records than those of the sample
    assert (net.calls, net.history, buffers_of(net)["mean"]) == (1, [8], [0.5, 0.5])


class Hidden(nn.Linear):
    hidden: Any = None

    def forward(self, x: Any) -> Any:
        self.hidden = super().forward(x)
        return self.hidden


def test_the_look_for_a_program_leaves_no_symbols() -> None:
    net = Hidden(2, 1)
    check_exportable(built(lambda: net), SAMPLE, ["pt2"])
    assert net.hidden is None


def test_a_model_that_cannot_be_copied_keeps_its_buffers_too() -> None:
    net = Remembers(unlike=threading.Lock())
    before = buffers_of(net)
    random.seed(7), np.random.seed(7)
    built(lambda: net)
    after = [np.random.rand(), random.random()]
    random.seed(7), np.random.seed(7)
    assert after == [np.random.rand(), random.random()]
    assert buffers_of(net) == before


def test_ranges_of_observers_are_those_of_training_alone() -> None:
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    net = nn.Sequential(nn.Linear(2, 1), FakeQuantize(observer=MovingAverageMinMaxObserver))
    plain = nn.Sequential(nn.Linear(2, 1), FakeQuantize(observer=MovingAverageMinMaxObserver))
    model = built(lambda: net)
    plain.load_state_dict({name: value.clone() for name, value in net.state_dict().items()})
    forward = ForwardPass(model, module_of(net, loss=lambda labels, p: p.mean()), StepOptions())
    forward.predict(SAMPLE * 100, None)
    forward.train(SAMPLE, None, None)
    plain.train()(SAMPLE)
    assert buffers_of(net) == buffers_of(plain)


def test_an_evaluation_does_not_change_the_model() -> None:
    net = Remembers()
    model = built(lambda: net)
    kept, before = dict(net.named_buffers()), buffers_of(net)
    forward = ForwardPass(model, module_of(net, loss=lambda labels, p: p.mean()), StepOptions())
    for _ in range(2):
        forward.predict(SAMPLE, None)
        assert buffers_of(net) == before
        assert all(buffer is kept[name] for name, buffer in net.named_buffers())


class Lazy(nn.Module):
    def __init__(self, *, whole: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
        self.head = nn.LazyLinear(1)
        self.whole, self.calls = whole, 0
        self.made = None

    def forward(self, x: Any) -> Any:
        self.calls += 1
        if not self.whole and self.made is None:
            self.made = nn.Linear(3, 3)
        x = self.body(x)
        return self.head(x if self.whole else self.made(x))


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_layers_are_made_as_the_first_call_would() -> None:
    model: Any = built(lambda: Lazy()).net
    torch.manual_seed(1)
    plain = Lazy()
    plain.eval()(SAMPLE)
    assert model.calls == 0 and type(model.head) is nn.Linear
    found, right = model.state_dict(), plain.state_dict()
    assert found.keys() == right.keys() and all(torch.equal(found[name], right[name]) for name in right)
    made: Any = built(lambda: Lazy(whole=False))
    assert {"made.weight", "head.weight", "body.0.weight"} <= made.trainable.keys()


def test_generators_go_on_where_they_were() -> None:
    own = nn.Module()
    own.a, own.b, own.c = np.random.default_rng(1), np.random.RandomState(2), random.Random(3)
    draws = []
    for _ in range(2):
        torch.manual_seed(1), np.random.seed(1), random.seed(1)
        with generators_kept(own, ()):
            own_drawn = [own.a.random(), own.b.rand(), own.c.random(), *drawn()]
        draws.append(own_drawn)
    assert draws[0] == draws[1]


class Unloads(ModuleType):
    """A module in whose look-up another one goes, as when a thread unloads it."""

    def __getattr__(self, name: str) -> Any:
        sys.modules.pop("unloaded_meanwhile", None)
        raise AttributeError(name)


def test_generators_are_found_while_modules_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = ModuleType("unloaded_meanwhile")
    module.__file__ = str(tmp_path / "unloaded_meanwhile.py")
    module.generator = torch.Generator()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "unloaded_meanwhile", module)
    monkeypatch.setitem(sys.modules, "a_module_that_unloads", Unloads("a_module_that_unloads"))
    assert find_generators(nn.Linear(1, 1), [tmp_path]) == [module.generator]
