"""The original's preprocessing layers, with the values of its published unit tests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.feature_column.feature_column_v2 import FeatureTransformationCache

from elasticdl.python.elasticdl.feature_column.feature_column import embedding_column
from elasticdl_preprocessing import layers
from elasticdl_preprocessing.feature_column.feature_column import concatenated_categorical_column
from elasticdl_preprocessing.utils import analyzer_utils
from elasticdl_preprocessing.utils.decorators import declare_model_inputs

keras: Any = tf.keras
WORDS = ["A", "B", "C", "D", "E"]


@pytest.mark.parametrize(
    ("layer", "given", "wanted"),
    [
        (layers.Discretization(bins=[1, 5, 10]), [[0.2, 1.6, 4.2], [6.1], [10.9]], [[0, 1, 1], [2], [3]]),
        (layers.Hashing(num_bins=3), [["A", "B"], ["C", "D"], ["E"]], [[1, 0], [1, 1], [2]]),
        (layers.Hashing(num_bins=100), [[1, 12], [-7]], [[tf.strings.to_hash_bucket_fast(x, 100).numpy() for x in r]
                                                        for r in (["1", "12"], ["-7"])]),
        (layers.IndexLookup(["A", "B", "C"]), [["A", "B", "C"], ["D", "E"]], [[0, 1, 2], [3, 3]]),
        (layers.IndexLookup(["A", "B"], num_oov_tokens=0), [["B"], ["Z", "A"]], [[1], [-1, 0]]),
        (layers.LogRound(num_bins=20, base=2), [[1.1, 3.4], [1025.0]], [[0, 2], [10]]),
        (layers.LogRound(num_bins=16, base=2), [[0.0, 2.6, 0.2], [3.1]], [[0, 1, 0], [2]]),
        (layers.Normalizer(1.0, 2.0), [[5.0, 7.0], [9.0]], [[2.0, 3.0], [4.0]]),
        (layers.RoundIdentity(num_buckets=10), [[1.1, 3.4, 0.5], [40.0]], [[1, 3, 0], [0]]),
        (layers.ToNumber(tf.int32, -1), [["123", ""], ["-789"]], [[123, -1], [-789]]),
        (layers.ToNumber(tf.float32, 0.0), [["123.1", ""], ["-789.987"]], [[np.float32(123.1), 0.0],
                                                                           [np.float32(-789.987)]]),
        (layers.ToNumber(tf.int8, 0), [["12", ""]], [[12, 0]]),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, keras.layers.Layer) else "",
)  # fmt: skip
def test_values_are_changed_in_tensors_of_each_kind(layer: Any, given: Any, wanted: Any) -> None:
    ragged = tf.ragged.constant(given)
    assert layer(ragged).to_list() == wanted
    sparse = layer(ragged.to_sparse())
    assert tf.RaggedTensor.from_sparse(sparse).to_list() == wanted
    dense = layer(tf.constant(given[0]))
    assert dense.numpy().tolist() == wanted[0]
    assert layer.compute_output_spec(keras.KerasTensor((None, 1))).dtype == dense.dtype.name
    again = type(layer).from_config(layer.get_config())
    assert again(tf.constant(given[0])).numpy().tolist() == wanted[0]


def test_ids_of_several_columns_are_put_side_by_side() -> None:
    layer = layers.ConcatenateWithOffset(offsets=[0, 10], axis=1)
    assert layer([tf.constant([[1], [1]]), tf.constant([[2], [2]])]).numpy().tolist() == [[1, 12], [1, 12]]
    one, two = tf.ragged.constant([[1], [], [1]], tf.int64), tf.ragged.constant([[2], [2], []], tf.int64)
    assert layer([one, two]).to_list() == [[1, 12], [12], [1]]
    sparse = layer([one.to_sparse(), two.to_sparse()])
    assert sparse.indices.numpy().tolist() == [[0, 0], [0, 1], [1, 1], [2, 0]]
    assert sparse.values.numpy().tolist() == [1, 12, 12, 1]
    with pytest.raises(ValueError, match="2 offsets for 1 tensors"):
        layer([one])


def test_ignored_cells_are_left_out() -> None:
    sparse = layers.ToSparse()(tf.constant([["A", ""], ["B", "C"]]))
    assert sparse.indices.numpy().tolist() == [[0, 0], [1, 0], [1, 1]]
    assert sparse.values.numpy().tolist() == [b"A", b"B", b"C"]
    assert layers.ToSparse()(tf.constant([[12, -1], [45, 78]])).values.numpy().tolist() == [12, 45, 78]
    assert layers.ToRagged()(tf.constant([[1], [-1], [4]], tf.int64)).to_list() == [[1], [], [4]]
    assert layers.ToRagged()(tf.constant([["1,2,3"], ["4,5"], [""]])).to_list() == [
        [b"1", b"2", b"3"],
        [b"4", b"5"],
        [],
    ]


def test_a_model_of_layers_computes_trains_and_can_be_saved(tmp_path: Path) -> None:
    words, ages = keras.Input((1,), dtype=tf.string, name="words"), keras.Input((1,), name="ages")
    ids = [
        layers.IndexLookup(WORDS[:3])(layers.ToSparse()(words)),
        layers.Discretization([20])(layers.ToSparse()(ages)),
    ]
    vectors = layers.SparseEmbedding(6, 2, embeddings_initializer="ones", combiner="sum")(
        layers.ConcatenateWithOffset([0, 4])(ids)
    )
    model = keras.Model({"words": words, "ages": ages}, keras.layers.Dense(1, kernel_initializer="ones")(vectors))
    records = {"words": tf.constant([["A"], [""], ["Z"]]), "ages": tf.constant([[10.0], [0.0], [30.0]])}
    assert model(records).numpy().ravel().tolist() == [4.0, 0.0, 4.0]
    model.compile("sgd", "mse")
    model.fit(records, np.ones((3, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again(records).numpy().tolist() == model(records).numpy().tolist()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: layers.Hashing(0), "num_bins"),
        (lambda: layers.IndexLookup(), "needs a vocabulary"),
        (lambda: layers.IndexLookup(["A", "A"]), "more than once: 'A'"),
        (lambda: layers.Normalizer(0, 0), "divisor"),
        (lambda: layers.SparseEmbedding(2, 2, combiner="max"), "combiner"),
        (lambda: layers.ToNumber(tf.string, 0), "no type of numbers"),
        (lambda: concatenated_categorical_column([]), "at least one"),
        (lambda: concatenated_categorical_column([1]), "categorical columns"),
        (lambda: declare_model_inputs(), "at least one"),
    ],
)
def test_arguments_that_cannot_work_are_refused(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def test_a_vocabulary_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("A\nB\nC\n")
    layer = layers.IndexLookup(str(path))
    assert layer(tf.constant([[one] for one in WORDS])).numpy().ravel().tolist() == [0, 1, 2, 3, 3]
    assert layer.vocab_size() == 4


def test_statistics_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert analyzer_utils.get_min("age", 10) == 10
    assert analyzer_utils.get_vocabulary("city", ["a", "b"]) == ["a", "b"]
    for name, value in {
        "_age_min": "11", "_age_max": "100", "_age_avg": "50.9", "_age_stddev": "90.87",
        "_age_boundaries": "67,15,89,15", "_city_distinct_count": "50", "_city_vocab": "./city.txt",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert (analyzer_utils.get_min("age", 10), analyzer_utils.get_max("age", 10)) == (11, 100)
    assert (analyzer_utils.get_avg("age", 10), analyzer_utils.get_stddev("age", 10)) == (50.9, 90.87)
    assert analyzer_utils.get_bucket_boundaries("age", [10, 78]) == [15, 67, 89]
    assert analyzer_utils.get_distinct_count("city", 19) == 50
    assert analyzer_utils.get_vocabulary("city", ["a", "b"]) == "./city.txt"


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_vectors_of_weighted_ids_are_combined_as_tensorflow_does(combiner: str) -> None:
    vectors = tf.reshape(tf.range(10.0), (5, 2))
    ids = tf.sparse.from_dense(tf.constant([[1, 2, 3], [4, 0, 0]], tf.int64))
    weights = tf.SparseTensor(ids.indices, tf.constant([-1.0, 2.0, 0.5, -3.0]), ids.dense_shape)
    identity = tf.feature_column.categorical_column_with_identity("ids", 5)
    column = embedding_column(tf.feature_column.weighted_categorical_column(identity, "weights"), 2, combiner)
    table = SimpleNamespace(**{column._attribute: lambda found: tf.gather(vectors, found)})
    features = FeatureTransformationCache({"ids": ids, "weights": weights})
    found = column.get_dense_tensor(features, SimpleNamespace(_layer=table))
    wanted = tf.nn.safe_embedding_lookup_sparse(vectors, ids, weights, combiner=combiner)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6)


def test_a_concatenated_column_has_the_ids_of_all() -> None:
    columns = tf.feature_column
    parts = [
        columns.categorical_column_with_hash_bucket("aaa", 1024),
        columns.categorical_column_with_identity("bbb", 32),
        columns.bucketized_column(columns.numeric_column("ccc"), [1, 2]),
    ]
    column = concatenated_categorical_column(parts)
    assert (column.name, column.num_buckets, column._is_v2_column) == ("aaa_C_bbb_C_ccc_bucketized", 1059, True)
    assert set(column.parse_example_spec) == {"aaa", "bbb", "ccc"}
    assert column.from_config(column.get_config()).num_buckets == 1059
