"""Embeddings on parameter servers: in every kind of model, without their weights, with merged gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import elasticdl.layers
from elasticdl_core.errors import UserCodeError
from elasticdl_runtime.initializers import first_rows
from elasticdl_worker.trainers.framework import Lookups
from elasticdl_worker.trainers.tensorflow.model.build import BuildOptions, PreparedModel, build_model
from elasticdl_worker.trainers.tensorflow.step.programs import Programs
from elasticdl_worker.user_code import ModelModule

pytestmark = pytest.mark.unit
Layers = tf.keras.layers
IDS = tf.TensorSpec([None, 3], tf.int64)


def prepared(make: Any, spec: Any = IDS, threshold: int | None = 0) -> PreparedModel:
    module = ModelModule(Path(__file__), (Path(__file__).parent,), make)
    return build_model(module, spec, BuildOptions(threshold))


def functional() -> Any:
    ids = tf.keras.Input((3,), dtype="int64")
    shared = Layers.Embedding(50, 4)
    both = Layers.Concatenate()([shared(ids), shared(tf.keras.ops.add(ids, 1)), Layers.Embedding(50, 2)(ids)])
    return tf.keras.Model(ids, Layers.Dense(1)(Layers.Flatten()(both)))


def sequential() -> Any:
    return tf.keras.Sequential([Layers.Embedding(50, 4), Layers.Flatten(), Layers.Dense(1)])


class Subclassed(tf.keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.vectors = Layers.Embedding(50, 4)
        self.head = Layers.Dense(1)

    def call(self, ids: Any, training: bool = False) -> Any:
        return self.head(tf.reduce_mean(self.vectors(ids) + self.vectors(ids[:, ::-1]), 1))


def masked() -> Any:
    ids = tf.keras.Input((3,), dtype="int64")
    return tf.keras.Model(
        ids, Layers.Dense(1)(Layers.GlobalAveragePooling1D()(Layers.Embedding(50, 4, mask_zero=True)(ids)))
    )


def loss(labels: Any, predictions: Any) -> Any:
    return tf.reduce_mean(tf.square(labels - predictions[:, 0]))


@pytest.mark.parametrize("make", [functional, sequential, Subclassed, masked])
def test_gradients_equal_those_of_embeddings_in_the_graph(make: Any) -> None:
    """The same weights and ids, once in the graph and once as rows: equal loss, equal merged gradients."""
    rng = np.random.default_rng(5)
    ids = tf.constant(np.concatenate([rng.integers(0, 12, (16, 2)), rng.integers(1, 12, (16, 1))], 1))
    labels = tf.constant(rng.normal(size=16).astype(np.float32))
    plain = prepared(make, threshold=None)
    expected_programs = Programs(plain, loss, tf.TensorSpec([None], tf.float32))
    weights = {name: layer.get_weights()[0] for name, layer in plain.registry.in_graph.items()}
    expected = expected_programs.gradients(ids, labels, {}, Lookups())
    dense = plain.values()

    split = prepared(make)
    assert split.tables.keys() == weights.keys()
    assert not [name for name in split.trainable if name.endswith("embeddings")]
    split.assign({name: dense[name] for name in split.trainable})
    programs = Programs(split, loss, tf.TensorSpec([None], tf.float32))
    lookups = programs.collect(ids, training=True)
    rows = {table: weights[table][unique] for table, unique in lookups.unique.items()}
    result = programs.gradients(ids, labels, rows, lookups)
    assert result.loss == pytest.approx(expected.loss, rel=1e-6)
    for name, gradient in result.dense.items():
        np.testing.assert_allclose(gradient, expected.dense[name], atol=1e-6)
    for table, gradient in result.rows.items():
        assert len(np.unique(lookups.unique[table])) == len(lookups.unique[table])
        whole = np.zeros_like(weights[table])
        whole[lookups.unique[table]] = gradient
        name = next(n for n in expected.dense if n.endswith("embeddings") and n.startswith(table))
        np.testing.assert_allclose(whole, expected.dense[name], atol=1e-6)


def test_a_table_larger_than_memory_is_never_allocated() -> None:
    def huge() -> Any:
        ids = tf.keras.Input((3,), dtype="int64")
        return tf.keras.Model(ids, Layers.Dense(1)(Layers.Flatten()(Layers.Embedding(2**31 - 1, 4096)(ids))))

    model = prepared(huge, threshold=2 << 20)
    (table,) = model.tables.values()
    assert table.input_dim == 2**31 - 1
    assert table.initializer.kind == "uniform"
    assert table.initializer.params == {"minval": -0.05, "maxval": 0.05}


@pytest.mark.parametrize(
    "options",
    [
        {"embeddings_regularizer": "l2"},
        {"embeddings_constraint": "non_neg"},
        {"embeddings_initializer": "orthogonal"},
        {"weights": [np.ones((50, 4), np.float32)]},
        {"trainable": False},
        {"lora_rank": 2},
    ],
)
def test_layers_that_cannot_be_split_keep_their_weights(options: dict[str, Any]) -> None:
    model = prepared(lambda: tf.keras.Sequential([Layers.Embedding(50, 4, **options), Layers.Flatten()]))
    assert not model.tables
    assert any("embeddings" in name for name in model.trainable | model.state)


def test_a_class_of_the_user_s_with_its_own_call_keeps_its_weights() -> None:
    class Scaled(Layers.Embedding):
        def call(self, inputs: Any) -> Any:
            return super().call(inputs) * 2.0

    model = prepared(lambda: tf.keras.Sequential([Scaled(50, 4), Layers.Flatten()]))
    assert not model.tables


def test_tied_weights_are_refused_with_the_fix() -> None:
    class Tied(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.vectors = Layers.Embedding(50, 4)

        def call(self, ids: Any, training: bool = False) -> Any:
            return tf.matmul(self.vectors(ids), self.vectors.embeddings, transpose_b=True)

    with pytest.raises(UserCodeError, match="its weights are used directly") as caught:
        prepared(Tied)
    assert "--embedding_threshold_bytes" in caught.value.fix


def test_ids_that_depend_on_rows_are_refused() -> None:
    class Chained(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Layers.Embedding(50, 4), Layers.Embedding(50, 4)

        def call(self, ids: Any, training: bool = False) -> Any:
            return self.second(tf.argmax(self.first(ids), -1))

    model = prepared(Chained)
    with pytest.raises(UserCodeError, match="depend on the rows"):
        Programs(model).collect(tf.constant([[1, 2, 3]], tf.int64), training=True)


def test_moving_averages_keep_their_momentum() -> None:
    def normalised() -> Any:
        values = tf.keras.Input((3,))
        return tf.keras.Model(values, Layers.Dense(1)(Layers.BatchNormalization(momentum=0.5)(values)))

    model = prepared(normalised, tf.TensorSpec([None, 3], tf.float32))
    programs = Programs(model, loss, tf.TensorSpec([None], tf.float32))
    values = tf.constant([[2.0, 4.0, 6.0], [4.0, 6.0, 8.0]])
    result = programs.gradients(values, tf.constant([0.0, 1.0]), {}, Lookups())
    changes = {name.rpartition("/")[2]: change for name, change in result.state.items()}
    np.testing.assert_allclose(changes["moving_mean"].add, [1.5, 2.5, 3.5], rtol=1e-6)
    assert changes.keys() == {"moving_mean"} or changes["moving_variance"].keep == 0.5


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_the_open_embedding_combines_the_vectors_of_a_record(combiner: str, kind: str) -> None:
    ragged = tf.ragged.constant([[7, -1], [], [1 << 40, 7, 7]], dtype=tf.int64)
    ids = ragged if kind == "ragged" else ragged.to_sparse()
    spec = (
        tf.RaggedTensorSpec([None, None], tf.int64)
        if kind == "ragged"
        else tf.SparseTensorSpec([None, None], tf.int64)
    )

    class Model(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.vectors = elasticdl.layers.Embedding(2, combiner=combiner)

        def call(self, ids: Any, training: bool = False) -> Any:
            return self.vectors(ids)

    model = prepared(Model, spec)
    (table,) = model.tables.values()
    assert table.input_dim is None
    programs = Programs(model)
    lookups = programs.collect(ids, training=False)
    assert sorted(lookups.unique[table.name].tolist()) == [-1, 7, 1 << 40]
    values = {7: [1.0, 2.0], -1: [3.0, 4.0], 1 << 40: [5.0, 6.0]}
    rows = np.array([values[i] for i in lookups.unique[table.name].tolist()], np.float32)
    out = np.asarray(programs.forward(ids, {table.name: rows}, lookups))
    divisors = {"sum": (1, 1), "mean": (2, 3), "sqrtn": (2**0.5, 3**0.5)}[combiner]
    expected = [[4 / divisors[0], 6 / divisors[0]], [0, 0], [7 / divisors[1], 10 / divisors[1]]]
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_the_open_embedding_works_alone_and_can_be_saved() -> None:
    layer = elasticdl.layers.Embedding(4, mask_zero=True)
    out = layer(tf.constant([[5, 0, 5]], tf.int64))
    assert out.shape == (1, 3, 4)
    np.testing.assert_array_equal(out[0, 0], out[0, 2])
    assert np.any(out[0, 0] != out[0, 1])
    again = elasticdl.layers.Embedding.from_config(layer.get_config())
    np.testing.assert_array_equal(again(tf.constant([[5]], tf.int64))[0, 0], out[0, 0])
    with pytest.raises(ValueError, match="sparse ids need a combiner"):
        elasticdl.layers.Embedding(4)(tf.sparse.from_dense([[1, 0]]))


def test_each_worker_drops_out_other_units() -> None:
    def dropping() -> Any:
        x = tf.keras.Input((64,))
        return tf.keras.Model(x, Layers.Dropout(0.5)(x))

    masks = []
    for worker in (0, 1):
        model = prepared(dropping, tf.TensorSpec([None, 64], tf.float32))
        model.vary_randomness(worker)
        masks.append(np.asarray(model.keras_model(np.ones((1, 64), np.float32), training=True)))
    assert 0 < np.count_nonzero(masks[0]) < 64
    assert (masks[0] != masks[1]).any()


MATRIX = np.arange(200, dtype=np.float32).reshape(50, 4)


def given_before() -> Any:
    layer = Layers.Embedding(50, 4)
    layer.build((None, 3))
    layer.set_weights([MATRIX])
    return tf.keras.Sequential([layer, Layers.Flatten()])


def given_after() -> Any:
    ids = tf.keras.Input((3,), dtype="int64")
    layer = Layers.Embedding(50, 4)
    model = tf.keras.Model(ids, Layers.Flatten()(layer(ids)))
    layer.embeddings.assign(MATRIX)
    assert np.array_equal(layer.get_weights()[0], MATRIX)
    return model


def given_by_the_model() -> Any:
    model = tf.keras.Sequential([tf.keras.Input((3,), dtype="int64"), Layers.Embedding(50, 4), Layers.Flatten()])
    model.layers[0].set_weights([MATRIX])
    return model


@pytest.mark.parametrize("make", [given_before, given_after, given_by_the_model])
@pytest.mark.parametrize("alone", [False, True], ids=["on servers", "in one process"])
def test_weights_that_the_model_function_gives_are_the_first_ones(make: Any, alone: bool) -> None:
    module = ModelModule(Path(__file__), (Path(__file__).parent,), make)
    model = build_model(module, IDS, BuildOptions(0, alone=alone))
    assert not model.tables
    assert not model.registry.closed or make is given_after  # which assigns to the variable itself
    (value,) = model.values().values()
    np.testing.assert_array_equal(value, MATRIX)


class InALoop(tf.keras.Model):
    """Looks up in a loop over the ids, and outside of it in another layer."""

    def __init__(self, inside: Any) -> None:
        super().__init__()
        self.inside, self.outside = inside, Layers.Embedding(50, 4, name="outside")

    def call(self, ids: Any, training: bool = False) -> Any:
        looked = tf.map_fn(self.inside, ids, fn_output_signature=tf.float32)
        return tf.reduce_sum(looked + self.outside(ids), [1, 2])


def test_layers_that_a_loop_calls_keep_their_weights() -> None:
    model = prepared(lambda: InALoop(Layers.Embedding(50, 4, name="inside")))
    assert [name.rpartition("/")[2] for name in model.tables] == ["outside"]
    assert any(name.endswith("inside/embeddings") for name in model.trainable)
    rng = np.random.default_rng(1)
    ids = tf.constant(rng.integers(0, 50, (4, 3)))
    programs = Programs(model, lambda labels, found: tf.reduce_mean((labels - found) ** 2), tf.TensorSpec([None]))
    lookups = programs.collect(ids, training=True)
    rows = {name: np.ones((len(unique), 4), np.float32) for name, unique in lookups.unique.items()}
    assert np.isfinite(programs.gradients(ids, tf.zeros(4), rows, lookups).loss)


def test_ids_without_a_bound_in_a_loop_are_refused() -> None:
    with pytest.raises(UserCodeError, match="inside is called within a loop or a branch"):
        prepared(lambda: InALoop(elasticdl.layers.Embedding(4, name="inside")))


@pytest.mark.parametrize("make", [functional, sequential, Subclassed, lambda: InALoop(Layers.Embedding(50, 4))])
def test_large_embeddings_begin_alike_on_servers_and_in_one_process(make: Any) -> None:
    module = ModelModule(Path(__file__), (Path(__file__).parent,), make)
    served = build_model(module, IDS, BuildOptions(0, seed=5))
    closed = build_model(module, IDS, BuildOptions(0, seed=5, alone=True))
    assert not closed.tables
    every = np.arange(50, dtype=np.int64)
    values = closed.values()
    for name, value in served.values().items():
        np.testing.assert_array_equal(values.pop(name), value, err_msg=name)
    assert values.keys() == {f"{name}/embeddings" for name in served.tables}
    for name, spec in served.tables.items():
        np.testing.assert_array_equal(values[f"{name}/embeddings"], first_rows(spec, every), err_msg=name)


def drawn_from_one() -> Any:
    one = tf.keras.initializers.RandomUniform(seed=tf.keras.random.SeedGenerator(3))
    rows = Layers.Embedding(50, 4, embeddings_initializer=one)
    return tf.keras.Sequential([rows, Layers.Flatten(), Layers.Dense(3, kernel_initializer=one), Layers.Dense(1)])


@pytest.mark.parametrize("make", [functional, Subclassed, drawn_from_one])
def test_layers_made_after_a_large_embedding_begin_as_beside_a_small_one(make: Any) -> None:
    module = ModelModule(Path(__file__), (Path(__file__).parent,), make)
    plain = build_model(module, IDS, BuildOptions(None, seed=5)).values()
    for alone in (False, True):
        values = build_model(module, IDS, BuildOptions(0, seed=5, alone=alone)).values()
        for name, value in values.items():
            if not name.endswith("embeddings"):
                np.testing.assert_array_equal(value, plain[name], err_msg=name)


@pytest.mark.parametrize(("combiner", "weights"), [("sum", (1, 1)), ("mean", (0.5, 1)), ("sqrtn", (0.5**0.5, 1))])
def test_a_combiner_passes_over_padding(combiner: str, weights: tuple[float, float]) -> None:
    layer = elasticdl.layers.Embedding(4, mask_zero=True, combiner=combiner)
    ids = tf.ragged.constant([[3, 0, 5], [0, 7], [0]], dtype=tf.int64)
    rows = layer(tf.constant([3, 5, 7], tf.int64)).numpy()
    expected = np.stack([(rows[0] + rows[1]) * weights[0], rows[2] * weights[1], rows[0] * 0])
    np.testing.assert_allclose(layer(ids), expected, rtol=1e-6)
    np.testing.assert_allclose(layer(ids.to_sparse()), expected, rtol=1e-6)
