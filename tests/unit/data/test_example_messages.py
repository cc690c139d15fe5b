from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data.clicks import ClickTruth, encode_clicks, expected_auc
from elasticdl.data.errors import DataError
from elasticdl.data.example import decode_example, encode_example, varint, varints

pytestmark = pytest.mark.unit

INT64 = st.integers(-(2**63), 2**63 - 1)
FEATURE = st.one_of(
    st.lists(st.binary(max_size=20), min_size=1, max_size=4),
    st.lists(st.floats(width=32), min_size=1, max_size=8),
    st.lists(INT64, min_size=1, max_size=8),
)


def _same(found: Any, expected: Any) -> bool:
    return bool(np.array_equal(np.array(found), np.array(expected), equal_nan=isinstance(expected[0], float)))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=6), FEATURE, max_size=4))
def test_the_bytes_are_those_of_tensorflow(features: dict[str, Any]) -> None:
    import tensorflow as tf

    message = tf.train.Example()
    for name, values in features.items():
        kinds = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
        getattr(message.features.feature[name], kinds[type(values[0])]).value.extend(values)
    ours = encode_example(features)
    theirs = message.SerializeToString()
    assert len(ours) == len(theirs)
    assert ours == theirs or len(features) > 1  # TensorFlow promises no order of several features
    assert tf.train.Example.FromString(ours) == message
    decoded = decode_example(message.SerializeToString())
    assert decoded.keys() == features.keys()
    assert all(_same(decoded[name], features[name]) for name in features)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("é", ["é".encode()]),
        (b"x", [b"x"]),
        (["a", "b"], [b"a", b"b"]),
        (3, [3]),
        (True, [1]),
        (0.5, [0.5]),
        (np.arange(4, dtype=np.uint8).reshape(2, 2), [0, 1, 2, 3]),
        (np.array([[0.5], [2]], dtype=np.float16), [0.5, 2.0]),
        (np.array([], dtype=np.float32), []),
    ],
)
def test_values_of_many_types_are_taken(value: Any, expected: list[Any]) -> None:
    assert decode_example(encode_example({"f": value})) == {"f": expected}


@pytest.mark.parametrize("value", [None, {"a": 1}, np.array([1 + 2j]), np.array([2**63], dtype=np.uint64)])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(DataError, match="feature 'f'"):
        encode_example({"f": value})


@given(st.lists(INT64, max_size=30))
def test_varints_are_those_of_one_by_one(values: list[int]) -> None:
    packed, sizes = varints(np.array(values, dtype=np.int64))
    expected = [varint(value & (2**64 - 1)) for value in values]
    assert packed == b"".join(expected)
    assert sizes.tolist() == [len(one) for one in expected]


@given(st.binary(min_size=1, max_size=60))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    try:
        decode_example(data)
    except DataError as error:
        assert error.fix


@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 40).map(lambda n: 10**n % 2**62 + 1), st.integers(0, 9))
def test_clicks_have_the_bytes_of_examples(fields: int, count: int, ids: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(0, ids, (count, fields))
    labels = random.integers(0, 2, count)
    expected = [encode_example({"ids": row, "label": [int(y)]}) for row, y in zip(values, labels, strict=True)]
    assert encode_clicks(values, labels) == expected


@given(st.lists(st.sampled_from([0.1, 0.25, 0.5, 0.9, 1.0]), min_size=2, max_size=12))
def test_the_expected_auc_is_that_of_all_pairs(chances: list[float]) -> None:
    right = pairs = 0.0
    for i, p in enumerate(chances):
        for j, q in enumerate(chances):
            if i != j:
                pairs += p * (1 - q)
                right += p * (1 - q) * (1.0 if p > q else 0.5 if p == q else 0.0)
    assert expected_auc(np.array(chances)) == pytest.approx(right / pairs if pairs else 0.5)


def test_the_expected_auc_is_that_of_drawn_labels() -> None:
    from sklearn.metrics import roc_auc_score

    (batch,) = ClickTruth(10, 10_000, 1.1, 3).draw(50_000, 0, 50_000)
    assert expected_auc(batch.chances) == pytest.approx(roc_auc_score(batch.labels, batch.chances), abs=0.01)


def test_clicks_are_skewed_stay_in_their_field_and_repeat() -> None:
    truth = ClickTruth(4, 1000, 1.1, 7)
    first, again = (next(ClickTruth(4, 1000, 1.1, 7).draw(5000, 0, 5000)) for _ in range(2))
    assert np.array_equal(first.ids, again.ids)
    assert np.array_equal(first.labels, again.labels)
    assert np.array_equal(first.ids // 250, np.tile(np.arange(4), (5000, 1)))
    _, counts = np.unique(first.ids[:, 0], return_counts=True)
    assert counts.max() > 20 * np.median(counts)
    other = next(truth.draw(5000, 1, 5000))
    assert not np.array_equal(first.ids, other.ids)


def test_impossible_clicks_are_refused() -> None:
    for settings_ in ((0, 10, 1.0), (11, 10, 1.0), (2, 10, -1.0)):
        with pytest.raises(DataError, match="cannot be made"):
            ClickTruth(*settings_, seed=0)
