"""DeepFM (Guo et al. 2017) as a model module; ids and labels come as fixed-width binary records."""

import tensorflow as tf

FIELDS = 10


def forward(ids, dim=64, hidden=(64, 32), dense_seed=None):
    """The model: ids [batch, 10] to the logit of a click [batch, 1].

    With a seed its dense parameters begin as those of ``deepfm_torch.forward`` with the same seed.
    """
    inputs = tf.keras.Input((FIELDS,), dtype="int64", name="ids")
    vectors = tf.keras.layers.Embedding(ids, dim, embeddings_initializer="uniform", name="vectors")(inputs)
    weights = tf.keras.layers.Embedding(ids, 1, embeddings_initializer="zeros", name="weights")(inputs)
    linear = tf.keras.layers.Dense(1, kernel_initializer="ones")(tf.keras.layers.Flatten()(weights))
    pairs = PairwiseInteractions()(vectors)
    deep = tf.keras.layers.Flatten()(vectors)
    for width in hidden:
        deep = tf.keras.layers.Dense(width, activation="relu")(deep)
    deep = tf.keras.layers.Dense(1)(deep)
    model = tf.keras.Model(inputs, tf.keras.layers.Add()([linear, pairs, deep]), name="deepfm")
    if dense_seed is not None:
        from first_values import dense_values  # type: ignore[import-not-found]  # in the same zoo

        layers = [layer for layer in model.layers if isinstance(layer, tf.keras.layers.Dense)]
        pairs_of = {layer.kernel.shape[0]: layer for layer in layers}
        for kernel, bias in dense_values(FIELDS, dim, dense_seed, hidden):
            pairs_of[kernel.shape[0]].set_weights([kernel, bias])
    return model


@tf.keras.utils.register_keras_serializable("deepfm")
class PairwiseInteractions(tf.keras.layers.Layer):
    """Sum over all pairs of fields of their vectors' dot product (Rendle 2010): [b, f, d] to [b, 1]."""

    def call(self, vectors):
        """Uses the square of the sum minus the sum of the squares."""
        total = tf.reduce_sum(vectors, axis=1)
        squares = tf.reduce_sum(tf.square(vectors), axis=1)
        return 0.5 * tf.reduce_sum(tf.square(total) - squares, axis=1, keepdims=True)


def loss(labels, predictions):
    """Mean binary cross-entropy of the minibatch."""
    labels = tf.reshape(tf.cast(labels, tf.float32), [-1, 1])
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=predictions))


def optimizer(kind="SGD", lr=0.1):
    """A Keras optimizer by its class's name."""
    return getattr(tf.keras.optimizers, kind)(lr)


def feed(dataset, mode, _):
    """A record is ten ids and a label, int64 each."""

    def parse(record):
        values = tf.ensure_shape(tf.io.decode_raw(record, tf.int64), [FIELDS + 1])
        return values[:FIELDS] if mode == "prediction" else (values[:FIELDS], values[FIELDS:])

    return dataset.map(parse)


def eval_metrics_fn():
    """Area under the ROC curve."""
    return {"auc": tf.keras.metrics.AUC(num_thresholds=2000, from_logits=True)}
