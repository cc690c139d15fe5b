"""Keras modules by what people do in training: schedules, clipping, shared and frozen parts, losses, own state."""

from __future__ import annotations

from tests.differential.written.keras_modules import OF_ALL, OF_CLASSES

NET = """
def forward():
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(1)(layers.Dense(8, "tanh")(x)))
"""
MODULES = {
    "warm_restarts": NET
    + """
def optimizer():
    return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecayRestarts(0.03, 3, t_mul=2.0, m_mul=0.8))
""",
    "a_warm_up_and_then_a_decay": NET
    + """
def optimizer():
    rate = keras.optimizers.schedules.CosineDecay(0.01, 8, alpha=0.1, warmup_target=0.1, warmup_steps=4)
    return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, global_clipnorm=0.5)
""",
    "steps_of_the_rate_and_values_clipped": NET
    + """
def optimizer():
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([3, 7], [0.05, 0.02, 0.01])
    return keras.optimizers.RMSprop(rate, clipvalue=0.02, centered=True)
""",
    "each_gradient_clipped_and_decay_but_of_some": """
def forward():
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(1, name="last")(layers.Dense(8, "tanh", name="first")(x)))


def optimizer():
    made = keras.optimizers.AdamW(0.02, weight_decay=0.1, clipnorm=0.05)
    made.exclude_from_weight_decay(var_names=["bias"])
    return made
""",
    "frozen_layers_and_statistics": """
def forward():
    x = keras.Input((4,), name="x")
    base = keras.Sequential([layers.Dense(6, "relu"), layers.BatchNormalization()], name="base")
    base.trainable = False
    return keras.Model(x, layers.Dense(1)(layers.Dense(6, "relu")(base(x, training=False))))
""",
    "classes_by_weight": OF_CLASSES
    + """
def forward():
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(3)(layers.Dense(6, "gelu")(x)))


def loss(labels, predictions):
    weights = tf.gather(tf.constant([1.0, 5.0, 20.0]), labels)
    each = keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)
    return tf.reduce_sum(weights * each) / tf.reduce_sum(weights)
""",
    "weights_of_records_in_the_labels": NET
    + """
def feed(dataset, mode, metadata):
    def pick(record):
        x, ids, y, c, word = parse(record)
        return x if mode == "prediction" else (x, {"y": y, "weight": 0.1 + 0.01 * tf.cast(ids[:1], tf.float32)})

    return dataset.map(pick)


def loss(labels, predictions):
    return keras.losses.MeanSquaredError()(labels["y"], predictions, sample_weight=labels["weight"])
""",
    "smoothed_labels": OF_CLASSES
    + """
def forward():
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(3, "softmax")(layers.Dense(6, "silu")(x)))


def loss(labels, predictions):
    return keras.losses.CategoricalCrossentropy(label_smoothing=0.1)(tf.one_hot(labels, 3), predictions)
""",
    "both_ways_through_masked_words": OF_ALL
    + """
def forward():
    ids = keras.Input((3,), name="ids", dtype="int64")
    x, word = keras.Input((4,), name="x"), keras.Input((1,), name="word", dtype="string")
    words = layers.Embedding(60, 4, mask_zero=True)(ids)
    found = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(words)
    found = layers.GlobalAveragePooling1D()(found)
    hashed = layers.Embedding(8, 2)(layers.Hashing(8)(word))
    return keras.Model([x, ids, word], layers.Dense(1)(layers.concatenate([found, layers.Flatten()(hashed), x])))
""",
    "a_layer_that_averages": """
class Averaging(layers.Layer):
    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, inputs, training=False):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(inputs, 0))
        return (inputs - self.mean) * self.scale


def forward():
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(1)(Averaging()(x)))
""",
    "layers_in_lists_and_a_subclass_in_a_subclass": """
class Block(keras.Model):
    def __init__(self, width):
        super().__init__()
        self.steps = [layers.Dense(width, "relu"), layers.LayerNormalization(), layers.UnitNormalization()]

    def call(self, x):
        for one in self.steps:
            x = one(x)
        return x


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = {"a": Block(6), "b": Block(5)}
        self.last = layers.Dense(1)

    def call(self, x, training=False):
        return self.last(self.blocks["b"](self.blocks["a"](x)))


forward = Net
""",
    "a_normalization_that_was_fitted": """
def forward():
    x = keras.Input((4,), name="x")
    norm = layers.Normalization()
    norm.adapt(np.linspace(-2.0, 3.0, 80).reshape(20, 4).astype("float32"))
    return keras.Model(x, layers.Dense(1)(layers.Dense(4, "elu")(norm(x))))
""",
    "weights_of_low_rank": """
def forward():
    first = layers.Dense(6, "relu")
    first.build((None, 4))
    first.enable_lora(2)
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(1)(first(x)))
""",
    "causal_convolutions_and_time_distributed": """
def forward():
    x = keras.Input((4,), name="x")
    steps = layers.Reshape((4, 1))(x)
    steps = layers.Conv1D(4, 2, padding="causal", activation="relu")(steps)
    steps = layers.TimeDistributed(layers.Dense(2, "tanh"))(steps)
    steps = layers.GroupNormalization(2)(steps)
    return keras.Model(x, layers.Dense(1)(layers.Flatten()(steps)))


loss = keras.losses.Huber(delta=0.3)
""",
    "outputs_by_weight": """
def forward():
    x = keras.Input((4,), name="x")
    hidden = layers.Dense(6, "relu")(x)
    return keras.Model(x, [layers.Dense(1)(hidden), layers.Dense(3)(hidden)])


def feed(dataset, mode, metadata):
    def pick(record):
        x, ids, y, c, word = parse(record)
        return x if mode == "prediction" else (x, (y, c))

    return dataset.map(pick)


def loss(labels, predictions):
    value = keras.losses.MeanAbsoluteError()(labels[0], predictions[0])
    return value + 0.3 * keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels[1], predictions[1])
""",
    "what_is_added_is_a_sum": """
class Coded(layers.Layer):
    def call(self, inputs):
        self.add_loss(0.01 * ops.sum(ops.square(inputs)))
        return inputs


def forward():
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(1)(Coded()(layers.Dense(6, "tanh")(x))))
""",
    "sixteen_bits_within": """
def forward():
    x = keras.Input((4,), name="x")
    hidden = layers.Dense(8, "relu", dtype="mixed_bfloat16")(x)
    return keras.Model(x, layers.Dense(1, dtype="float32")(hidden))
""",
    "overlaps_of_the_whole_minibatch": """
def forward():
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(1, "sigmoid")(layers.Dense(6, "relu")(x)))


def loss(labels, predictions):
    return keras.losses.Dice()(tf.cast(labels > 0, tf.float32), predictions)
""",
    "an_own_schedule_of_the_rate": NET
    + """
class Warm(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        step = (tf.cast(step, tf.float32) + 1) / 4.0
        return 0.05 * tf.minimum(step, tf.math.rsqrt(step))

    def get_config(self):
        return {}


def optimizer():
    return keras.optimizers.Adamax(Warm())
""",
    "a_decoder_that_is_the_encoder_turned": """
class Tied(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder, self.last = layers.Dense(3, "tanh"), layers.Dense(1)
        self.bias = self.add_weight(shape=(4,), initializer="zeros", name="bias")

    def call(self, x):
        again = tf.matmul(self.encoder(x), self.encoder.kernel, transpose_b=True) + self.bias
        self.add_loss(0.1 * tf.reduce_mean(tf.square(again - x)))
        return self.last(again)


forward = Tied
""",
    "sparse_words_and_an_own_layer": """
class Words(layers.Layer):
    def build(self, shape):
        self.rows = self.add_weight(shape=(50, 2), initializer="glorot_uniform", name="rows")

    def call(self, words):
        return tf.sparse.sparse_dense_matmul(words, self.rows)


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.words, self.last = Words(), layers.Dense(1)

    def call(self, words):
        hidden = self.words(words)
        self.add_loss(0.1 * tf.reduce_mean(tf.square(hidden)))
        return self.last(hidden)


forward = Net


def feed(dataset, mode, metadata):
    def pick(record):
        x, ids, y, c, word = parse(record)
        words = tf.sparse.from_dense(tf.reduce_max(tf.one_hot(ids, 50), 0))
        return words if mode == "prediction" else (words, y)

    return dataset.map(pick)
""",
}
