"""Premade models of statements, against the same mathematics written anew in plain Keras."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import pytest

from elasticdl.sql.grammar import parse_statement
from elasticdl.sql.modules import write_module
from elasticdl.sql.source import Column

ROWS = 6


def columns() -> dict[str, Column]:
    found = {name: Column(name) for name in ("age", "city", "hours", "y")}
    for at in range(ROWS):
        for column, value in zip(
            found.values(),
            (20.0 + at * at, ["oslo", "rome", "lima"][at % 3], at, ["no", "yes"][at % 2]),
            strict=True,
        ):
            column.add(value)
    return found


def model_of(subject: str, attributes: str) -> keras.Model:
    label, third = ("hours", "y") if subject.endswith("Regressor") else ("y", "hours")
    statement = parse_statement(
        f"SELECT * FROM t TO TRAIN {subject} WITH {attributes} COLUMN age, city, INDICATOR({third}) "
        f"LABEL {label} INTO m"
    )
    options = {name: value for name, (value, _) in statement.attributes.items()}
    module: dict[str, Any] = {}
    exec(compile(write_module(statement, columns(), options)[0], "model.py", "exec"), module)
    return module["forward"]()


def rows(model: keras.Model) -> dict[str, Any]:
    values = {
        "age": keras.ops.convert_to_tensor([[25.0], [31.0], [44.0]]),
        "city": keras.ops.convert_to_tensor([["rome"], ["oslo"], ["paris"]]),
        "hours": keras.ops.convert_to_tensor([["1"], ["5"], ["77"]]),
        "y": keras.ops.convert_to_tensor([["no"], ["yes"], ["?"]]),
    }
    return {one.name: values[one.name] for one in model.inputs}


def dense(layer: Any, value: Any) -> Any:
    """A fully connected layer in NumPy."""
    kernel = np.asarray(layer.kernel)
    return np.asarray(value) @ kernel + (np.asarray(layer.bias) if layer.use_bias else 0.0)


def randomised(model: keras.Model) -> keras.Model:
    random = np.random.default_rng(3)
    for variable in model.trainable_variables:
        variable.assign(random.normal(size=variable.shape, scale=0.3))
    return model


def features(model: keras.Model, given: dict[str, Any]) -> list[Any]:
    """What the model computes of each column, in its order: a number, a pooled vector, and an indicator."""
    kinds = (keras.layers.GlobalAveragePooling1D, keras.layers.CategoryEncoding)
    pooled, coded = (next(one for one in model.layers if isinstance(one, kind)) for kind in kinds)
    number = next(one for one in model.layers if type(one).__name__ == "Normalizer")
    found = keras.Model(model.inputs, [number.output, pooled.output, coded.output])(given)
    return [np.asarray(one, np.float32) for one in found]


@pytest.mark.parametrize(("subject", "outputs"), [("DeepFMClassifier", 2), ("DeepFMRegressor", 1)])
def test_deepfm_multiplies_columns_in_pairs(subject: str, outputs: int) -> None:
    model = randomised(model_of(subject, "hidden_units=[5, 4], vector_size=8"))
    given = rows(model)
    columns_of = features(model, given)
    layers = [one for one in model.layers if isinstance(one, keras.layers.Dense)]
    projections = [one for one in layers if not one.use_bias]
    hidden = [one for one in layers if one.activation is keras.activations.relu]
    width = sum(one.shape[1] for one in columns_of)
    linear, pairs, deep = (next(one for one in layers if one.kernel.shape == (n, outputs)) for n in (width, 8, 4))
    assert len(layers) == len(projections) + len(hidden) + 3
    vectors = [dense(projections[0], columns_of[0]), columns_of[1], dense(projections[1], columns_of[2])]
    together = np.concatenate(columns_of, axis=1)
    products = sum(a * b for a, b in itertools.combinations(vectors, 2))
    state = together
    for layer in hidden:
        state = np.maximum(dense(layer, state), 0)
    wanted = dense(linear, together) + dense(pairs, products) + dense(deep, state)
    assert wanted.shape == (3, outputs)
    np.testing.assert_allclose(np.asarray(model(given)), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("subject", "outputs"), [("DCNClassifier", 2), ("DCNRegressor", 1)])
def test_dcn_crosses_all_columns(subject: str, outputs: int) -> None:
    model = randomised(model_of(subject, "hidden_units=[5], cross_layers=2"))
    given = rows(model)
    first = np.concatenate(features(model, given), axis=1)
    layers = [one for one in model.layers if isinstance(one, keras.layers.Dense)]
    width = first.shape[1]
    crosses = [one for one in layers if one.kernel.shape == (width, width)]
    (hidden,) = [one for one in layers if one.activation is keras.activations.relu]
    of_cross, of_deep = (next(one for one in layers if one.kernel.shape == (size, outputs)) for size in (width, 5))
    assert len(crosses) == 2 and len(layers) == 5
    state = first
    for layer in crosses:
        state = first * dense(layer, state) + state
    wanted = dense(of_cross, state) + dense(of_deep, np.maximum(dense(hidden, first), 0))
    np.testing.assert_allclose(np.asarray(model(given)), wanted, rtol=1e-4, atol=1e-5)
