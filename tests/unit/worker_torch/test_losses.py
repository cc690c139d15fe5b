"""Which argument of a loss or metric is which, and shapes of which broadcasting makes a table of all pairs."""

from __future__ import annotations

import functools
import warnings
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.loss_denominators import CLOSE, CLOSE_OF_HALF, require_mean
from elasticdl_worker.trainers.torch.model.build import TorchBuildOptions, build_model
from elasticdl_worker.trainers.torch.model.calling import cut
from elasticdl_worker.trainers.torch.model.losses import OuterProducts, by_labels_first
from elasticdl_worker.trainers.torch.model.metrics import make_metrics, to_numpy
from elasticdl_worker.trainers.torch.step.programs import ForwardPass, StepOptions
from elasticdl_worker.user_code import ModelModule

pytestmark = pytest.mark.unit
LABELS = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])
PREDICTIONS = torch.tensor([-3.0, 2.0, 0.5, 4.0, -1.0])
CLASSES = torch.tensor([0, 2, 1])
SCORES = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.5, 3.0], [1.0, 1.0, 0.0]])
Outputs = namedtuple("Outputs", "price click")
Labels = namedtuple("Labels", "price click")


def forward_of(loss: Any, net: Any = None) -> ForwardPass:
    module = ModelModule(Path("m.py"), (), lambda: net or nn.Linear(2, 1), loss=loss)
    return ForwardPass(build_model(module, torch.ones(4, 2), TorchBuildOptions(1 << 40, 1)), module, StepOptions())


class Own(nn.BCEWithLogitsLoss):
    pass


def scripted(module: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(module)


@pytest.mark.parametrize(
    ("loss", "labels", "predictions", "right"),
    [
        (
            nn.BCEWithLogitsLoss(),
            LABELS,
            PREDICTIONS,
            functional.binary_cross_entropy_with_logits(PREDICTIONS, LABELS),
        ),
        (Own(), LABELS, PREDICTIONS, functional.binary_cross_entropy_with_logits(PREDICTIONS, LABELS)),
        (
            scripted(nn.SoftMarginLoss()),
            LABELS,
            PREDICTIONS,
            functional.soft_margin_loss(PREDICTIONS, LABELS),
        ),
        (functional.soft_margin_loss, LABELS, PREDICTIONS, functional.soft_margin_loss(PREDICTIONS, LABELS)),
        (nn.CrossEntropyLoss(), CLASSES, SCORES, functional.cross_entropy(SCORES, CLASSES)),
        (functional.cross_entropy, CLASSES, SCORES, functional.cross_entropy(SCORES, CLASSES)),
        (
            functools.partial(functional.cross_entropy, label_smoothing=0.1),
            CLASSES,
            SCORES,
            functional.cross_entropy(SCORES, CLASSES, label_smoothing=0.1),
        ),
        (
            nn.KLDivLoss(reduction="sum"),
            SCORES.softmax(1),
            SCORES,
            functional.kl_div(SCORES, SCORES.softmax(1), reduction="sum"),
        ),
        (
            lambda y, p: functional.soft_margin_loss(p, y),
            LABELS,
            PREDICTIONS,
            functional.soft_margin_loss(PREDICTIONS, LABELS),
        ),
    ],
)
def test_losses_of_pytorch_get_predictions_as_their_input(
    loss: Any, labels: Any, predictions: Any, right: Any
) -> None:
    assert float(forward_of(loss).loss(labels, predictions)) == pytest.approx(float(right))
    metrics = make_metrics(ModelModule(Path("m.py"), (), nn.Identity, eval_metrics_fn=lambda: {"it": loss}), None, ())
    metrics.update(labels, predictions, 1)
    assert metrics.results(metrics.state())["it"] == pytest.approx(float(right))


def outputs_first(outputs: Any, targets: Any) -> Any:
    return functional.binary_cross_entropy_with_logits(outputs, targets)


class InputFirst(nn.Module):
    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(input, target)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (nn.GaussianNLLLoss(), "the loss is PyTorch's GaussianNLLLoss, which takes input, target, var"),
        (nn.TripletMarginLoss(), "takes anchor, positive, negative"),
        (functional.cosine_embedding_loss, "takes input1, input2, target"),
        (functools.partial(functional.mse_loss, LABELS), "PyTorch's mse_loss, which takes target"),
        (nn.MSELoss, "the loss is the class MSELoss"),
        (outputs_first, r"names its arguments \(outputs, targets\), but labels come first"),
        (lambda y_pred, y_true: y_pred - y_true, r"\(y_pred, y_true\)"),
        (InputFirst(), r"\(input, target\)"),
        (scripted(InputFirst()), r"\(input, target\)"),
    ],
)
def test_a_loss_of_other_arguments_is_refused_with_what_to_write(loss: Any, words: str) -> None:
    for make in (forward_of, functools.partial(by_labels_first, "the loss")):
        with pytest.raises(UserCodeError, match=words) as raised:
            make(loss)
        assert raised.value.fix
    if loss is not nn.MSELoss:
        module = ModelModule(Path("m.py"), (), nn.Identity, eval_metrics_fn=lambda: {"it": loss})
        with pytest.raises(UserCodeError, match=words.replace("the loss", "the metric it")):
            make_metrics(module, None, ())


N = 6
COLUMN = torch.linspace(-1, 1, N)[:, None]
ROW = torch.linspace(0, 1, N)


def with_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """Predictions as a model gives them: made by an operation that PyTorch remembers."""
    return tensor.clone().requires_grad_() * 1.0


def pairs(labels: Any, predictions: Any) -> Any:
    order = torch.sign(labels[:, None] - labels[None, :])
    return (
        functional.relu(1.0 - (predictions - predictions.T) * order).mean()
        + (predictions - predictions.squeeze(1)).mean()
    )


OUTER = {
    "mse_loss": lambda y, p: functional.mse_loss(p, y),
    "the module": lambda y, p: nn.SmoothL1Loss()(p, y),
    "a difference": lambda y, p: ((y - p) ** 2).mean(),
    "behind others": lambda y, p: (y.float() * 2 - torch.sigmoid(p.clone())).abs().mean(),
    "chosen": lambda y, p: torch.where(y > 0.5, p, -p).mean(),
    "a product": lambda y, p: -(y * functional.logsigmoid(p)).mean(),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", OUTER)
@pytest.mark.parametrize("labels", [ROW, ROW[:, None]])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_table_of_all_pairs_is_refused_with_both_shapes(name: str, labels: Any, autocast: bool) -> None:
    predictions = COLUMN if labels.ndim == 1 else COLUMN[:, 0]
    words = rf"labels have the shape \{list(labels.shape)}, predictions \{list(predictions.shape)}.* 6 x 6".replace(
        "]", r"\]"
    )
    loss = OuterProducts("the loss", OUTER[name])
    for _ in range(2):  # a task that failed is tried again
        with torch.autocast("cpu", enabled=autocast), pytest.raises(UserCodeError, match=words) as raised:
            loss(labels, with_gradient(predictions))
        assert "the same shape" in raised.value.fix


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_it_is_refused_in_the_first_step_of_two_records_and_among_metrics() -> None:
    forward = forward_of(nn.MSELoss())
    forward.train(torch.ones(1, 2), torch.ones(1), None)
    with pytest.raises(
        UserCodeError, match=r"the loss compares .* labels have the shape \[4\], predictions \[4, 1\]"
    ):
        forward.train(torch.ones(4, 2), torch.ones(4), None)
    module = ModelModule(
        Path("m.py"), (), nn.Identity, feed=lambda d, m, s: d, eval_metrics_fn=lambda: {"e": functional.l1_loss}
    )
    with pytest.raises(UserCodeError, match="the metric e compares"):
        make_metrics(module, None, ()).update(ROW, COLUMN, N)


@pytest.mark.parametrize(
    ("function", "labels", "predictions"),
    [
        (OUTER["a difference"], COLUMN, COLUMN),
        (OUTER["mse_loss"], ROW, ROW),
        (lambda y, p: OUTER["mse_loss"](y, p.squeeze(1)), ROW, COLUMN),
        (lambda y, p: OUTER["mse_loss"](y[:, None], p), ROW, COLUMN),
        (lambda y, p: OUTER["mse_loss"](y.view_as(p), p), ROW, COLUMN),
        (pairs, ROW, COLUMN),
        (lambda y, p: torch.outer(y, p.squeeze(1)).mean(), ROW, COLUMN),
        (lambda y, p: (y.mean() - p).square().mean(), ROW, COLUMN),
        (lambda y, p: (p @ p.T - (y[:, None] == y[None]).float()).mean(), ROW, COLUMN),
        (lambda y, p: functional.cross_entropy(torch.cat([p, -p], 1), y.long()), ROW, COLUMN),
        (lambda y, p: OUTER["mse_loss"](y["x"], p["x"]), {"x": ROW}, {"x": ROW, "y": COLUMN}),
    ],
)
def test_what_is_meant_is_let_through(function: Any, labels: Any, predictions: Any) -> None:
    given = {k: with_gradient(v) for k, v in predictions.items()} if isinstance(predictions, dict) else predictions
    right = function(labels, predictions)
    assert torch.equal(OuterProducts("the loss", function)(labels, given).detach(), right)


class Two(nn.Module):
    def forward(self, x: Any) -> Any:
        return Outputs(x[:, 0] * 2, x[:, 1])


def test_a_named_tuple_stays_one() -> None:
    seen: list[Any] = []

    def loss(labels: Any, predictions: Any) -> Any:
        price, click = predictions  # by place, and below by name
        seen.append((labels, predictions))
        return (price - labels.price).square().mean() + (click - labels[1]).square().mean()

    net, features = Two(), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    forward, labels = forward_of(loss, net), Labels(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.0]))
    predictions = forward.predict(features, None)
    assert isinstance(predictions, Outputs)
    assert float(forward.loss(labels, predictions)) == 23.0
    assert isinstance(seen[0][0], Labels) and isinstance(seen[0][1], Outputs)
    module = ModelModule(
        Path("m.py"),
        (),
        lambda: net,
        eval_metrics_fn=lambda: {
            "price": {"error": lambda y, p: p - y},
            "both": lambda y, p: (p.price - y.price) + (p[1] - y.click),
        },
    )
    metrics = make_metrics(module, None, ("price", "click"))
    metrics.update(labels, predictions, 2)
    assert metrics.results(metrics.state()) == {"price.error": 3.0, "both": 6.0}
    stored: Any = to_numpy(predictions)
    assert list(stored) == ["price", "click"]
    np.testing.assert_array_equal(stored["price"], [2.0, 6.0])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda y, p: (p - y).abs().mean(0), r"gives 4 values .* for \d records"),
        (lambda y, p: p.max(), r"on average on its halves"),
    ],
)
@pytest.mark.parametrize("records", [4, 6])  # as many as classes too
def test_a_metric_that_is_not_of_the_records_is_refused(function: Any, words: str, records: int) -> None:
    module = ModelModule(Path("m.py"), (), nn.Identity, eval_metrics_fn=lambda: {"own": function})
    table = torch.arange(4.0 * records).view(records, 4)
    with pytest.raises(UserCodeError, match=rf"the metric own .*{words}.*: it gives for a minibatch what is no mean"):
        make_metrics(module, None, ()).update(torch.zeros(records, 4), table, records)


def test_a_mean_of_numbers_of_16_bits_is_a_mean_though_it_is_rounded() -> None:
    """Jobs with --autocast bfloat16 and a loss of their own were refused for how their mean was rounded."""

    def mean(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
        return functional.softplus(predictions).mean()

    def weighed(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
        weights = 1 + 9 * labels
        return (functional.softplus(predictions) * weights).sum() / weights.sum()

    def look(loss: Any, dtype: torch.dtype, close: float) -> None:
        draw = torch.Generator().manual_seed(1)
        for _ in range(8):
            given = torch.randn(32, generator=draw).to(dtype)
            labels = (torch.rand(32, generator=draw) < 0.3).to(dtype)
            require_mean(cut, loss, labels, given, 32, float(loss(labels, given)), close)

    for dtype, close in ((torch.float32, CLOSE), (torch.bfloat16, CLOSE_OF_HALF)):
        look(mean, dtype, close)
        with pytest.raises(UserCodeError, match="a mean is needed"):
            look(weighed, dtype, close)
