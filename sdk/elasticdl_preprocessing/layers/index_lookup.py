"""A layer that looks strings up in a vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.values import ValuesLayer, serializable


@serializable
class IndexLookup(ValuesLayer):
    """The place of each string in a vocabulary, as int64; others get ids behind it, by their hash.

    Args:
        vocabulary: the strings, or the path of a file with one a line.
        num_oov_tokens: number of ids for strings that are not there; with 0 these get -1.
        kwargs: arguments of any layer.

    Raises:
        ValueError: there is no vocabulary, or a string is in it twice.
    """

    arguments = ("vocabulary", "num_oov_tokens")

    def __init__(self, vocabulary: Sequence[str] | str | None = None, num_oov_tokens: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if isinstance(vocabulary, str):
            with tf.io.gfile.GFile(vocabulary) as file:
                vocabulary = [line.strip() for line in file]
        if not vocabulary:
            raise ValueError("IndexLookup needs a vocabulary: strings, or the path of a file with one a line")
        repeated = [term for term, times in Counter(vocabulary).items() if times > 1]
        if repeated:
            raise ValueError(f"the vocabulary of IndexLookup has more than once: {', '.join(map(repr, repeated))}")
        self.vocabulary = list(vocabulary)
        self.num_oov_tokens = num_oov_tokens
        self._table: Any = None

    def build(self, input_shape: Any = None) -> None:
        """Makes the table, once and outside any function that is being traced."""
        with tf.init_scope():
            ids = tf.range(len(self.vocabulary), dtype=tf.int64)
            initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(self.vocabulary), ids)
            if self.num_oov_tokens:
                self._table = tf.lookup.StaticVocabularyTable(initializer, self.num_oov_tokens)
            else:
                self._table = tf.lookup.StaticHashTable(initializer, -1)
        self.built = True

    def change(self, values: Any) -> Any:
        """The ids of strings."""
        return self._table.lookup(values)

    def vocab_size(self) -> int:
        """The number of ids that can occur."""
        return len(self.vocabulary) + self.num_oov_tokens
