"""What no gradient changes is merged as its module says it, as a trial shows, or is refused: alike in all ways."""

from __future__ import annotations

import dataclasses
import os

import pytest

from tests.differential.driver import Bench, Row, differences
from tests.differential.rows.torch_models import module_of
from tests.differential.zoo import module
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
KERAS, TORCH = "keras", pytest.param("torch", marks=NEEDS_TORCH)


def extremes(framework: str, declared: str = "", first: str = 'float("inf")') -> Row:
    """A model that notes the smallest and the largest input, and that of the last minibatch."""
    if framework == KERAS:
        said = f"self.state_merging = {declared}" if declared else "pass"
        source = module(
            f"""
class Noting(layers.Layer):
    def build(self, shape):
        kept = dict(shape=(4,), trainable=False)
        self.low = self.add_weight(name="low", initializer=keras.initializers.Constant({first}), **kept)
        self.high = self.add_weight(name="high", initializer=keras.initializers.Constant(-{first}), **kept)
        {said}

    def call(self, x, training=None):
        if training:
            self.low.assign(tf.minimum(self.low, tf.reduce_min(x, 0)))
            self.high.assign(tf.maximum(tf.reduce_max(x, 0), self.high))
        return x

def forward():
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(1)(Noting(name="noting")(x)))
""",
            "def optimizer():\n    return keras.optimizers.SGD(0.05)",
        )
        return Row("state_keras", source, "groups")
    source = module_of(
        f"""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.out = nn.Linear(4, 1)
                self.register_buffer("low", torch.full((4,), {first}))
                self.register_buffer("high", torch.full((4,), -{first}))
                self.state_merging = {declared or "None"}

            def forward(self, x):
                if self.training:
                    self.low.copy_(torch.minimum(self.low, x.detach().amin(0)))
                    self.high = torch.maximum(self.high, x.detach().amax(0))
                return self.out(x).flatten(0)

        forward = Net

        def optimizer():
            return functools.partial(torch.optim.SGD, lr=0.05)
        """
    )
    return Row("state_torch", source, "groups", {"export_formats": "safetensors"}, tolerance=1e-5)


@pytest.mark.parametrize("framework", [KERAS, TORCH])
@pytest.mark.parametrize("declared", ["", '{"low": "min", "high": "max"}'], ids=["by_trial", "declared"])
def test_extremes_are_those_of_all_records(bench: Bench, framework: str, declared: str) -> None:
    """They were refused for being infinite, and of two microbatches the mean of their changes was too small."""
    row = extremes(framework, declared)
    local = bench.local(row)
    assert local.error == ("", "")
    for way, outcome in (("servers", bench.cluster(row, workers=1)), ("a group", bench.group(row))):
        assert differences(row, local, outcome, records=False) == [], way


@pytest.mark.parametrize("framework", [KERAS, TORCH])
def test_what_is_no_rule_is_refused_by_name(bench: Bench, framework: str) -> None:
    row = extremes(framework, '{"low": "median"}')
    for outcome in (bench.local(row), bench.cluster(row, workers=1)):
        assert "says 'median' of low" in outcome.error[0]
        assert "give one of sum, mean, max, min, last" in outcome.error[1]


@NEEDS_TORCH
def test_a_teacher_that_is_averaged_in_the_model_is_trained_by_a_group(bench: Bench) -> None:
    """It was refused as changing "in some minibatches only": the first time it changes by equal values."""
    source = module_of(
        """
        from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.student = nn.Linear(4, 1)
                self.teacher = AveragedModel(self.student, multi_avg_fn=get_ema_multi_avg_fn(0.9))
                self.teacher.requires_grad_(False)

            def forward(self, x):
                if self.training:
                    self.teacher.update_parameters(self.student)
                return (self.student(x) + 0.1 * self.teacher(x).detach()).flatten(0)

        forward = Net

        def optimizer():
            return functools.partial(torch.optim.SGD, lr=0.05)
        """
    )
    row = Row("state_teacher", source, "groups", {"export_formats": "safetensors"}, tolerance=1e-5)
    local = bench.local(row)
    assert local.error == ("", "")
    for way, outcome in (
        ("servers", bench.cluster(row, workers=1)),
        ("a group", bench.group(row, members=1, microbatches=1)),
    ):
        assert differences(row, local, outcome, records=False) == [], way


@pytest.mark.parametrize(
    ("framework", "first"),
    [
        (KERAS, "nan"),
        pytest.param("torch", "inf", marks=NEEDS_TORCH),
        pytest.param("torch", "nan", marks=NEEDS_TORCH),
    ],
)
def test_what_is_not_known_at_first_is_refused_by_name_in_parts_alone(
    bench: Bench, framework: str, first: str
) -> None:
    """The message told the loss, and said that it was not finite; servers called what is no number a parameter."""
    row = extremes(framework, first=f'float("{first}")')
    for old, new in (
        (
            "tf.minimum(self.low, tf.reduce_min(x, 0))",
            "tf.where(tf.math.is_finite(self.low), 0.9 * self.low, tf.reduce_min(x, 0))",
        ),
        ("tf.maximum(tf.reduce_max(x, 0), self.high)", "tf.reduce_max(x, 0)"),
        (
            "torch.minimum(self.low, x.detach().amin(0))",
            "torch.where(~(self.low < 9), x.detach().amin(0), 0.9 * self.low)",
        ),
        ("torch.maximum(self.high, x.detach().amax(0))", "x.detach().amax(0)"),
    ):
        row = dataclasses.replace(row, source=row.source.replace(old, new))
    local = bench.local(row)
    assert local.error == ("", "")
    threads = max(1, len(os.sched_getaffinity(0)) // 2)  # TensorFlow's cannot be changed in a process
    whole = bench.group(row, members=1, microbatches=1, worker_threads=threads)
    for outcome in (bench.cluster(row, workers=1), whole):
        assert differences(row, local, outcome, records=False) == []
    error = bench.group(row).error
    assert "low begins with infinite numbers, or none, and changes" in error[0]
    assert 'state_merging = {"low": "max"}' in error[1]


@NEEDS_TORCH
def test_buffers_of_a_group_may_mask_be_filled_bit_by_bit_and_share_memory(bench: Bench) -> None:
    """A mask of infinite numbers was said to change, and what two buffers share moved twice."""
    source = module_of(
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.out = nn.Linear(4, 1)
                steps = torch.zeros(8)
                self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
                self.register_buffer("early", steps[:4])
                self.register_buffer("late", steps[2:6])
                self.register_buffer("seen", torch.full((4,), float("nan")))
                self.state_merging = {"seen": "last"}

            def forward(self, x):
                if self.training:
                    self.early += 1.0
                    self.seen[int(self.early[0]) % 4] = self.early[0]
                mixed = torch.softmax(x[:, None, :] * x[:, :, None] + self.mask, -1)
                return self.out((mixed @ x[:, :, None]).flatten(1)).flatten(0)

        forward = Net
        """
    )
    row = Row("state_begins", source, "groups", {"export_formats": "safetensors"}, tolerance=1e-5)
    local, group = bench.local(row), bench.group(row)
    for outcome in (local, group):
        del outcome.weights["mask"]
    assert differences(row, local, group, records=False) == []


@pytest.mark.parametrize("framework", [KERAS, TORCH])
def test_a_loss_with_a_denominator_of_its_own_is_that_of_the_minibatch(bench: Bench, framework: str) -> None:
    """With class weights one worker and two trained to weights that differed by 0.72, both SUCCEEDED."""
    row = extremes(framework, first="9.0")
    if framework == KERAS:
        weighed = "w = tf.where(y > 0, 20.0, 1.0)\n    return tf.reduce_sum(w * (p - y) ** 2) / tf.reduce_sum(w)"
    else:
        weighed = "w = torch.where(y > 0, 20.0, 1.0)\n    return (w * (p - y) ** 2).sum() / w.sum()"
    row = dataclasses.replace(row, source=f"{row.source}\n\ndef loss(y, p):\n    {weighed}\n")
    for deterministic in (True, False):
        outcome = bench.group(row, deterministic=deterministic)
        assert differences(row, bench.local(row), outcome, records=False) == []


COUNTS = {
    "updates": ("+= 1", "+= 1", "int64"),
    "records": ("+= len(x)", "+= tf.shape(x, tf.int64)[0]", "int64"),
    "sums": ("+= x.detach().sum(0)", "+= tf.reduce_sum(x, 0)", "float32"),
    "steps": ("+= 1.0", "+= 1.0", "float32"),
    "latest": (".copy_(x[-1])", "= x[-1]", "float32"),
}
"""Buffers of a model that counts, by what it does to them in each framework."""


def counting(framework: str, counts: dict[str, tuple[str, str, str]]) -> Row:
    """A model that counts in each training step."""
    wide = {name: 4 if name in ("sums", "latest", "decaying") else 1 for name in counts}
    if framework == KERAS:
        made = [
            f"self.{name} = self.add_weight(name={name!r}, shape=({wide[name]},), dtype={kind!r}, "
            'initializer="zeros", trainable=False)'
            for name, (_, _, kind) in counts.items()
        ]
        done = []
        for name, (_, does, _) in counts.items():
            value = does.removeprefix("+= ").removeprefix("= ")
            like = f"tf.broadcast_to({value}, ({wide[name]},))"
            done.append(f"self.{name}.{'assign_add' if does.startswith('+=') else 'assign'}({like})")
        source = module(
            f"""
class Counting(layers.Layer):
    def build(self, shape):
        {"; ".join(made)}

    def call(self, x, training=None):
        if training:
            {"; ".join(done)}
        return x

def forward():
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(1)(Counting(name="counting")(x)))
""",
            "def optimizer():\n    return keras.optimizers.SGD(0.05)",
        )
        return Row("counts_keras", source, "groups", tolerance=1e-5)
    made = [
        f"self.register_buffer({name!r}, torch.zeros({wide[name]}, dtype=torch.{kind}))"
        for name, (_, _, kind) in counts.items()
    ]
    done = [f"self.{name}{does}" for name, (does, _, _) in counts.items()]
    source = module_of(
        f"""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.out = nn.Linear(4, 1)
                {"; ".join(made)}

            def forward(self, x):
                if self.training:
                    {"; ".join(done)}
                return self.out(x).flatten(0)

        forward = Net

        def optimizer():
            return functools.partial(torch.optim.SGD, lr=0.05)
        """
    )
    return Row("counts_torch", source, "groups", {"export_formats": "safetensors"}, tolerance=1e-5)


@pytest.mark.parametrize("framework", [KERAS, TORCH])
def test_counts_and_sums_are_those_of_whole_minibatches(bench: Bench, framework: str) -> None:
    """Integers counted the parts of updates, and a sum over records moved by the mean of its parts' sums."""
    row = counting(framework, COUNTS)
    local = bench.local(row)
    assert local.error == ("", "")
    for way, outcome in (("servers", bench.cluster(row, workers=1)), ("a group", bench.group(row))):
        assert differences(row, local, outcome, records=False) == [], way


@pytest.mark.parametrize("framework", [KERAS, TORCH])
def test_what_no_rule_makes_of_parts_is_refused_by_name(bench: Bench, framework: str) -> None:
    """Of two microbatches a sum that decays was half as large."""
    decaying = (
        " = 0.9 * self.decaying + x.detach().sum(0)",
        "= 0.9 * self.decaying + tf.reduce_sum(x, 0)",
        "float32",
    )
    row = counting(framework, {"decaying": decaying})
    assert bench.local(row).error == ("", "")
    error = bench.group(row).error
    assert "decaying is neither a statistic nor a sum" in error[0]
    assert error[1].startswith("give --microbatches 1, or say it in its layer")
