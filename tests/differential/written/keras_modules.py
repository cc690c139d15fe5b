"""Keras modules as people write them: the beginning of each is the same, which reads a CSV line."""

from __future__ import annotations

HEAD = """
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops


def parse(record):
    numbers = tf.strings.to_number(record[:9], tf.float32)
    ids = tf.cast(numbers[6:9], tf.int64)
    return numbers[2:6], ids, numbers[:1], tf.cast(numbers[1], tf.int32), record[9:10]


def feed(dataset, mode, metadata):
    def pick(record):
        x, ids, y, c, word = parse(record)
        return x if mode == "prediction" else (x, y)

    return dataset.map(pick)


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions))


def optimizer():
    return keras.optimizers.SGD(0.05)
"""
OF_CLASSES = """
def feed(dataset, mode, metadata):
    def pick(record):
        x, ids, y, c, word = parse(record)
        return x if mode == "prediction" else (x, c)

    return dataset.map(pick)


loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""
OF_ALL = """
def feed(dataset, mode, metadata):
    def pick(record):
        x, ids, y, c, word = parse(record)
        features = {"x": x, "ids": ids, "word": word}
        return features if mode == "prediction" else (features, y)

    return dataset.map(pick)
"""
MODULES = {
    "wide_and_deep": OF_ALL
    + """
def forward():
    x, ids = keras.Input((4,), name="x"), keras.Input((3,), name="ids", dtype="int64")
    word = keras.Input((1,), name="word", dtype="string")
    looked = layers.StringLookup(vocabulary=["red", "green", "blue", "grey"], output_mode="one_hot")(word)
    deep = layers.Flatten()(layers.Embedding(50, 4)(ids))
    deep = layers.Dense(8, "relu")(layers.concatenate([deep, x]))
    return keras.Model([x, ids, word], layers.add([layers.Dense(1)(deep), layers.Dense(1)(looked)]))


def optimizer():
    return keras.optimizers.Ftrl(0.05)
""",
    "a_subclass_that_adds_a_loss": """
class Sparse(keras.Model):
    def __init__(self, rate=1e-2):
        super().__init__()
        self.rate = rate
        self.encode = layers.Dense(8, activation="sigmoid")
        self.decode = layers.Dense(1)

    def call(self, inputs, training=False):
        hidden = self.encode(inputs)
        if training:
            self.add_loss(self.rate * ops.mean(ops.abs(hidden)))
        return self.decode(hidden)


def forward():
    return Sparse()


def optimizer():
    return keras.optimizers.Adam(0.02)
""",
    "a_recurrent_net_with_masks": OF_ALL
    + """
def forward():
    ids = keras.Input((3,), name="ids", dtype="int64")
    hidden = layers.Embedding(50, 6, mask_zero=True)(ids)
    hidden = layers.Bidirectional(layers.GRU(4, return_sequences=True))(hidden)
    return keras.Model({"ids": ids}, layers.Dense(1)(layers.LSTM(5)(hidden)))


def feed(dataset, mode, metadata):
    def pick(record):
        x, ids, y, c, word = parse(record)
        return {"ids": ids} if mode == "prediction" else ({"ids": ids}, y)

    return dataset.map(pick)


def optimizer():
    return keras.optimizers.RMSprop(0.01, clipnorm=0.5)
""",
    "two_named_outputs": """
def forward():
    x = keras.Input((4,))
    hidden = layers.Dense(6, "tanh", kernel_initializer="he_normal")(x)
    return keras.Model(x, {"value": layers.Dense(1)(hidden), "kind": layers.Dense(3)(hidden)})


def feed(dataset, mode, metadata):
    def pick(record):
        x, ids, y, c, word = parse(record)
        return x if mode == "prediction" else (x, {"value": y, "kind": c})

    return dataset.map(pick)


def loss(labels, predictions):
    kind = keras.losses.sparse_categorical_crossentropy(labels["kind"], predictions["kind"], from_logits=True)
    return tf.reduce_mean(kind) + 0.3 * tf.reduce_mean(tf.abs(labels["value"] - predictions["value"]))
""",
    "layers_of_ones_own": """
class Scale(layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        shape = (input_shape[-1], self.units)
        self.kernel = self.add_weight(shape=shape, initializer="glorot_uniform", name="kernel")
        self.gain = self.add_weight(shape=(), initializer="ones", name="gain")

    def call(self, x):
        return ops.matmul(x, self.kernel) * self.gain

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class Stack(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [Scale(6), Scale(6), Scale(1)]

    def call(self, x):
        for part in self.parts[:-1]:
            x = ops.relu(part(x)) + 0.1
        return self.parts[-1](x)


forward = Stack
""",
    "classes_and_a_schedule": OF_CLASSES
    + """
def forward():
    return keras.Sequential([layers.Dense(8, activation="swish"), layers.LayerNormalization(), layers.Dense(3)])


def optimizer():
    schedule = keras.optimizers.schedules.CosineDecay(0.05, 10, warmup_target=0.1, warmup_steps=3)
    return keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
""",
    "regularizers_and_constraints": """
def forward():
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8, "relu", kernel_regularizer=keras.regularizers.L1L2(1e-3, 1e-2)),
            layers.Dense(8, "relu", kernel_constraint=keras.constraints.NonNeg(), bias_regularizer="l2"),
            layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.Adamax(0.02)
""",
    "one_layer_called_twice": """
def forward():
    x = keras.Input((4,))
    shared = layers.Dense(5, "tanh")
    left, right = shared(x), shared(-x)
    return keras.Model(x, layers.Dense(1)(layers.multiply([left, layers.subtract([left, right])])))


def optimizer():
    made = keras.optimizers.AdamW(0.02, weight_decay=0.05)
    made.exclude_from_weight_decay(var_names=["bias"])
    return made
""",
    "attention_over_columns": """
def forward():
    x = keras.Input((4,))
    hidden = layers.Dense(6)(layers.Reshape((4, 1))(x))
    hidden = layers.Add()([hidden, layers.MultiHeadAttention(2, 3)(hidden, hidden)])
    hidden = layers.TimeDistributed(layers.Dense(3, activation="gelu"))(layers.LayerNormalization()(hidden))
    return keras.Model(x, layers.Dense(1)(layers.GlobalAveragePooling1D()(hidden)))


def optimizer():
    return keras.optimizers.SGD(0.05, momentum=0.9)
""",
    "columns_that_are_prepared_in_the_model": OF_ALL
    + """
class Prepared(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm = layers.Rescaling(2.0, offset=0.1)
        self.hashing = layers.Hashing(7, output_mode="one_hot")
        self.buckets = layers.Discretization([-0.5, 0.0, 0.5], output_mode="one_hot")
        self.head = keras.Sequential([layers.Dense(6, "relu"), layers.Dense(1)])

    def call(self, inputs):
        x = self.norm(inputs["x"])
        return self.head(ops.concatenate([x, self.hashing(inputs["word"]), self.buckets(inputs["x"][:, :1])], -1))


forward = Prepared


def optimizer():
    return keras.optimizers.Adagrad(0.1)
""",
    "a_lambda_and_an_own_activation": """
def squash(x):
    return x / (1.0 + ops.abs(x))


def forward():
    x = keras.Input((4,))
    hidden = layers.Lambda(lambda t: ops.concatenate([t, ops.square(t)], -1))(x)
    hidden = layers.Activation(squash)(layers.Dense(8, kernel_initializer="lecun_uniform")(hidden))
    return keras.Model(x, layers.Dense(1, use_bias=False)(hidden))


loss = keras.losses.Huber(delta=0.5)
""",
    "convolutions_and_a_frozen_layer": """
def forward():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Reshape((4, 1)),
            layers.Conv1D(4, 2, padding="causal", activation="relu"),
            layers.SeparableConv1D(4, 3, padding="same"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(6, "elu", name="frozen"),
            layers.Dense(1),
        ]
    )
    model.get_layer("frozen").trainable = False
    return model


def optimizer():
    return keras.optimizers.Adadelta(0.5)
""",
}
