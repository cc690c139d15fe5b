"""Models that nobody has thought of: layers, optimizers, schedules and sizes, put together at random."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.differential.data import MINIBATCH
from tests.differential.driver import Bench, Row
from tests.differential.zoo import module, net

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
_numbers = itertools.count()

DENSE = st.builds(
    "layers.Dense({}, {!r}, kernel_regularizer={!r}, use_bias={})".format,
    st.integers(1, 9),
    st.sampled_from([None, "relu", "tanh", "softplus", "elu", "sigmoid"]),
    st.sampled_from([None, "l1", "l2"]),
    st.booleans(),
)
SHAPED = st.sampled_from(
    [
        "layers.LayerNormalization()",
        "layers.BatchNormalization(momentum=0.8)",
        "layers.Reshape((-1, 1))",
        "layers.Flatten()",
        "layers.PReLU()",
        "layers.UnitNormalization()",
        "layers.Rescaling(0.5)",
    ]
)
LAYERS = st.lists(st.one_of(DENSE, SHAPED), min_size=1, max_size=5)
SCHEDULES = st.one_of(
    st.floats(0.001, 0.2).map(repr),
    st.builds(
        "keras.optimizers.schedules.CosineDecay({}, {})".format, st.sampled_from([0.1, 0.01]), st.integers(2, 30)
    ),
    st.builds(
        "keras.optimizers.schedules.ExponentialDecay({}, {}, {})".format,
        st.sampled_from([0.1, 0.01]),
        st.integers(1, 9),
        st.sampled_from([0.0, 0.5, 0.9]),
    ),
    st.builds("keras.optimizers.schedules.PiecewiseConstantDecay([{}], [0.1, 0.0])".format, st.integers(1, 11)),
)
CLIPPING = st.sampled_from(["", ", clipnorm=0.1", ", clipvalue=0.1", ", global_clipnorm=0.5"])
OPTIMIZERS = st.builds(
    "keras.optimizers.{}({}{}{})".format,
    st.sampled_from(["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "Adamax", "Ftrl"]),
    SCHEDULES,
    CLIPPING,
    st.sampled_from(["", ", weight_decay=0.01"]),
)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """A model, an optimizer and a job."""
    lines = [f"h = {call}(h)" for call in draw(LAYERS)]
    embedded = draw(st.booleans())
    if embedded:
        table = 'layers.Embedding(50, 2, embeddings_initializer="ones")'
        body = net(f"h = layers.Flatten()({table}(h))", *lines, "h = layers.Flatten()(h)", **IDS)
    else:
        body = net(*lines, "h = layers.Flatten()(h)")
    optimizer = draw(OPTIMIZERS)
    spec = {
        "minibatch_size": draw(st.sampled_from([1, 5, MINIBATCH, 48])),
        "num_minibatches_per_task": draw(st.integers(1, 8)),
        "num_epochs": draw(st.integers(1, 3)),
        "num_ps": draw(st.integers(1, 3)),
        "seed": draw(st.integers(0, 2**31 - 1)),
        "shuffle": draw(st.booleans()),
        "use_async": draw(st.booleans()),
        "embedding_threshold_bytes": draw(st.sampled_from([0, 1 << 21])),
    }
    source = module(body, f"def optimizer():\n    return {optimizer}")
    # A ratio of small numbers, as in the first steps of Adam, makes more of the last bit than a sum does.
    return Row(f"generated_{next(_numbers)}", source, "generated", spec=spec, two="", tolerance=1e-5)


IDS = {"features": "ids", "shape": "(3,)", "dtype": '"int64"'}


def check(bench: Bench, row: Row) -> None:
    problems = bench.verdict(row)
    assert not problems, "\n".join([*problems, str(row.spec), row.source])


@pytest.mark.timeout(300)
@settings(max_examples=4, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(row=rows())
def test_a_few_generated_models_train_as_one_process_does(bench: Bench, row: Row) -> None:
    check(bench, row)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(row=rows())
def test_many_generated_models_train_as_one_process_does(bench: Bench, row: Row) -> None:
    check(bench, row)
