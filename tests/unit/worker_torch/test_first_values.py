"""How large embeddings begin: by a rule that is what PyTorch would have made, or with their numbers in the model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch
from torch import nn

from elasticdl.torch import Embedding
from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.torch.model.build import BuiltModel, TorchBuildOptions, build_model
from elasticdl_worker.trainers.torch.model.first_values import draw_alike
from elasticdl_worker.user_code import ModelModule

pytestmark = pytest.mark.unit
ROWS, DIM = 100, 4


class Uses(nn.Module):
    """Looks up rows, and computes with their weight besides."""

    def __init__(self, use: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.rows = nn.Embedding(ROWS, DIM)
        self.use = use

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.use(self, self.rows(ids))


def built(change: Callable[[nn.Module], object], **options: Any) -> BuiltModel:
    def make() -> nn.Module:
        net = nn.Module()
        net.rows = nn.Embedding(ROWS, DIM, **options)
        change(net)
        return net

    return build_model(ModelModule(Path("m.py"), (), make), None, TorchBuildOptions(0, seed=3))


def is_uniform(bound: float) -> tuple[str, dict[str, float]]:
    return "uniform", {"minval": -bound, "maxval": bound}


def is_normal(stddev: float, mean: float = 0.0) -> tuple[str, dict[str, float]]:
    return "normal", {"mean": mean, "stddev": stddev}


RULES: dict[str, tuple[Callable[[Any], object], tuple[str, dict[str, float]]]] = {
    "as it is": (lambda net: None, is_normal(1.0)),
    "uniform_": (lambda net: nn.init.uniform_(net.rows.weight, -0.5, 0.5), is_uniform(0.5)),
    "normal_": (lambda net: nn.init.normal_(net.rows.weight, std=0.02), is_normal(0.02)),
    "constant_": (lambda net: nn.init.constant_(net.rows.weight, 0.5), ("constant", {"value": 0.5})),
    "ones_": (lambda net: nn.init.ones_(net.rows.weight), ("constant", {"value": 1.0})),
    "zeros_": (lambda net: nn.init.zeros_(net.rows.weight), ("constant", {"value": 0.0})),
    "xavier_uniform_": (
        lambda net: nn.init.xavier_uniform_(net.rows.weight),
        is_uniform((6 / (ROWS + DIM)) ** 0.5),
    ),
    "xavier_normal_": (lambda net: nn.init.xavier_normal_(net.rows.weight), is_normal((2 / (ROWS + DIM)) ** 0.5)),
    "kaiming_uniform_": (lambda net: nn.init.kaiming_uniform_(net.rows.weight), is_uniform((6 / DIM) ** 0.5)),
    "kaiming_normal_": (lambda net: nn.init.kaiming_normal_(net.rows.weight), is_normal((2 / DIM) ** 0.5)),
    "trunc_normal_, hardly cut": (lambda net: nn.init.trunc_normal_(net.rows.weight, std=0.02), is_normal(0.02)),
    "trunc_normal_": (
        lambda net: nn.init.trunc_normal_(net.rows.weight, 1.0, 0.5, a=0.0, b=2.0),
        ("truncated_normal", {"mean": 1.0, "stddev": 0.5}),
    ),
    "scaled": (lambda net: net.rows.weight.data.normal_(0, 0.3).div_(3), is_normal(0.1)),
    "flat": (lambda net: net.rows.weight.data.view(-1).uniform_(-0.1, 0.1), is_uniform(0.1)),
    "moved to the CPU": (lambda net: net.to("cpu"), is_normal(1.0)),
}


@pytest.mark.parametrize("name", RULES)
def test_what_initialises_an_embedding_becomes_the_rule_of_its_table(name: str) -> None:
    change, (kind, params) = RULES[name]
    (table,) = built(change).tables.values()
    assert table.initializer.kind == kind
    assert table.initializer.params == pytest.approx(params)


def data_of(net: Any, values: torch.Tensor) -> None:
    net.rows.weight.data = values


IN_THE_MODEL: dict[str, Callable[[Any], object]] = {
    "one row zero": lambda net: net.rows.weight.data[0].zero_(),
    "some rows": lambda net: net.rows.weight.data[:10].normal_(std=0.1),
    "other rows": lambda net: net.rows.weight.data[5:].mul_(2),
    "orthogonal_": lambda net: nn.init.orthogonal_(net.rows.weight),
    "sparse_": lambda net: nn.init.sparse_(net.rows.weight, 0.5),
    "eye_": lambda net: nn.init.eye_(net.rows.weight),
    "trunc_normal_ cut elsewhere": lambda net: nn.init.trunc_normal_(net.rows.weight, a=-1.0, b=3.0),
    "out": lambda net: torch.normal(0.0, 0.1, size=(ROWS, DIM), out=net.rows.weight.data),
    "foreach": lambda net: torch._foreach_mul_([net.rows.weight.data], 3.0),
    "other data": lambda net: data_of(net, torch.full((ROWS, DIM), 3.0)),
    "computed data": lambda net: data_of(net, net.rows.weight.data * 0.1),
    "mixed with others": lambda net: net.rows.weight.data.lerp_(torch.zeros(ROWS, DIM), 0.5),
    "loaded": lambda net: net.rows.load_state_dict({"weight": torch.ones(ROWS, DIM)}),
    "a number of it": lambda net: setattr(net, "mean", float(net.rows.weight.mean())),
    "a buffer of it": lambda net: net.register_buffer("first", net.rows.weight.detach().clone()),
    "a copy of the layer": lambda net: setattr(net, "target", copy.deepcopy(net.rows)),
    "weight_norm": lambda net: nn.utils.parametrizations.weight_norm(net.rows),
    "a hook": lambda net: net.rows.weight.register_hook(lambda gradient: gradient * 2),
    "a later hook": lambda net: net.rows.weight.register_post_accumulate_grad_hook(lambda weight: None),
    "shared memory": lambda net: net.share_memory(),
}


@pytest.mark.parametrize("name", IN_THE_MODEL)
def test_an_embedding_that_no_rule_describes_keeps_its_numbers(name: str) -> None:
    """The same that PyTorch makes by itself, wherever they go."""
    change = IN_THE_MODEL[name]
    made = built(change)
    assert not made.tables
    torch.manual_seed(3)
    plain: Any = nn.Module()
    plain.rows = nn.Embedding(ROWS, DIM)
    change(plain)
    wanted = plain.state_dict()
    assert made.net.state_dict().keys() == wanted.keys()
    for key, value in made.net.state_dict().items():
        torch.testing.assert_close(value, wanted[key], msg=key)
    assert vars(made.net).get("mean") == vars(plain).get("mean")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_an_embedding_of_another_type_is_no_table_of_float32(dtype: torch.dtype) -> None:
    with pytest.raises(UserCodeError, match=r"rows.weight is of torch\."):
        built(lambda net: net.to(dtype))


def test_an_error_of_the_model_function_itself_is_told_as_it_is() -> None:
    def fails(net: nn.Module) -> None:
        made.append(1)
        raise RuntimeError("the file is not there")

    made: list[int] = []
    with pytest.raises(UserCodeError, match="the file is not there"):
        built(fails)
    assert len(made) == 1, "no second attempt, with all numbers"


USED: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "tied": lambda net, found: nn.functional.linear(found, net.rows.weight),
    "penalised": lambda net, found: found + net.rows.weight.pow(2).sum(),
    "looked up otherwise": lambda net, found: found + nn.functional.embedding(torch.tensor([1]), net.rows.weight),
    "in training alone": lambda net, found: found + net.rows.weight.pow(2).sum() if net.training else found,
}


@pytest.mark.parametrize("use", USED)
def test_a_weight_that_forward_computes_with_stays_in_the_model(use: str) -> None:
    sample = torch.tensor([1, 2])
    made = build_model(ModelModule(Path("m.py"), (), lambda: Uses(USED[use])), sample, TorchBuildOptions(0))
    assert not made.tables and list(made.trainable) == ["rows.weight"]


def test_a_weight_of_which_forward_wants_the_form_alone_has_a_table() -> None:
    def use(net: Any, found: torch.Tensor) -> torch.Tensor:
        weight = net.rows.weight
        assert weight.requires_grad and weight.dtype is torch.float32
        return found + torch.zeros(weight.shape[1]) + torch.zeros(weight.new_zeros(3).shape[0], 1).sum()

    made = build_model(ModelModule(Path("m.py"), (), lambda: Uses(use)), torch.tensor([1]), TorchBuildOptions(0))
    assert list(made.tables) == ["rows"]


def open_pair(**options: Any) -> nn.Module:
    net: Any = nn.Module()
    net.first, net.second = Embedding(DIM), Embedding(DIM, "sum", **options)
    net.second.weight = net.first.weight
    return net


def test_open_embeddings_that_share_a_weight_share_a_table() -> None:
    made = build_model(ModelModule(Path("m.py"), (), open_pair), None, TorchBuildOptions(0))
    assert list(made.tables) == ["first"]
    assert made.net.second.elasticdl_table == "first"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"padding_idx": 0}, "differ in padding_idx"), ({"initializer": "ones"}, "how their rows begin")],
)
def test_open_embeddings_that_share_a_weight_have_the_same_rows(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserCodeError, match=said):
        build_model(ModelModule(Path("m.py"), (), lambda: open_pair(**options)), None, TorchBuildOptions(0))


@pytest.mark.parametrize(
    ("change", "warned"),
    [(lambda net: None, False), (lambda net: nn.init.normal_(net.rows.weight), True)],
    ids=["by the layer", "filled"],
)
def test_a_padding_row_that_is_zero_in_pytorch_is_not_warned_of(
    change: Callable[[Any], object], warned: bool
) -> None:
    with structlog.testing.capture_logs() as logs:
        assert built(change, padding_idx=2).tables
    assert [one["event"] for one in logs] == ["the padding row of a large embedding reads as zeros"] * warned


@pytest.mark.parametrize("begin", ["as it is", "uniform_", "kaiming_normal_", "trunc_normal_", "zeros_"])
def test_what_is_made_after_a_table_begins_as_after_an_embedding(begin: str) -> None:
    """A table drew no numbers, so that all later layers began otherwise than by AllReduce or in plain PyTorch."""

    def make() -> nn.Module:
        net = nn.Module()
        net.rows = nn.Embedding(ROWS, DIM, padding_idx=3)
        RULES[begin][0](net)
        net.bags, net.later = nn.EmbeddingBag(17, 3), nn.Linear(5, 2)
        return net

    torch.manual_seed(3)
    plain = make().later.weight
    for threshold in (0, 1 << 40):
        model = build_model(ModelModule(Path("m.py"), (), make), None, TorchBuildOptions(threshold, seed=3))
        assert bool(model.tables) == (not threshold)
        assert torch.equal(model.net.get_submodule("later").weight, plain), threshold


@pytest.mark.parametrize("name", ["normal_", "uniform_", "zero_"])
def test_as_many_numbers_are_drawn_as_for_a_tensor_of_any_size(name: str) -> None:
    for count in (1, 15, 16, 33, (1 << 20) + 3, (2 << 20) + 5, (3 << 20) - 1):
        generator, other = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
        options = {} if name == "zero_" else {"generator": generator}
        getattr(torch.empty(count), name)(**options)
        draw_alike(name, count, other)
        assert torch.equal(generator.get_state(), other.get_state()), count
