"""A factorization machine with a small deep part over id fields; CSV: label, id, id, id."""

import tensorflow as tf

FIELDS = 3
IDS = 1000


def custom_model(dim=4, regularised=False):
    ids = tf.keras.Input(shape=(FIELDS,), dtype="int64", name="ids")
    regularizer = tf.keras.regularizers.L2(1e-4) if regularised else None
    weights = tf.keras.layers.Embedding(IDS, 1, name="weights", embeddings_initializer="zeros")(ids)
    vectors = tf.keras.layers.Embedding(IDS, dim, name="vectors")(ids)
    linear = tf.keras.layers.Flatten()(weights)
    deep = tf.keras.layers.Dense(8, activation="relu", kernel_regularizer=regularizer)(
        tf.keras.layers.Flatten()(vectors)
    )
    joined = tf.keras.layers.Concatenate()([linear, deep])
    return tf.keras.Model(ids, tf.keras.layers.Dense(1, name="logit")(joined))


def loss(labels, predictions):
    labels = tf.cast(tf.reshape(labels, [-1, 1]), tf.float32)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=predictions))


def optimizer(lr=0.1, kind="SGD", **kwargs):
    return getattr(tf.keras.optimizers, kind)(lr, **kwargs)


def feed(dataset, mode, metadata):
    def parse(columns):
        ids = tf.strings.to_number(columns[1:], tf.int64)
        if mode == "prediction":
            return ids
        return ids, tf.strings.to_number(columns[0], tf.float32)

    return dataset.map(parse)


def eval_metrics_fn():
    return {
        "auc": tf.keras.metrics.AUC(from_logits=True),
        "accuracy": lambda labels, predictions: tf.equal(predictions[:, 0] > 0, labels > 0.5),
    }
