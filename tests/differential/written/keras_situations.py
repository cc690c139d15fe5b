"""Keras modules in situations that people ask about in public: losses, masks, cells and layers of their own."""

from __future__ import annotations

from tests.differential.written.keras_modules import OF_CLASSES

OF_TOKENS = """
def feed(dataset, mode, metadata):
    def pick(record):
        x, ids, y, c, word = parse(record)
        tokens = tf.concat([ids % 12, tf.zeros([2], tf.int64)], 0)
        after = tf.concat([tokens[1:], tokens[:1]], 0)
        return tokens if mode == "prediction" else (tokens, after)

    return dataset.map(pick)
"""
MODULES = {
    "siamese_twins_and_a_margin": """
def encoder():
    half = keras.Input((2,))
    return keras.Model(half, layers.UnitNormalization()(layers.Dense(3)(layers.Dense(8, "tanh")(half))))


def forward():
    x = keras.Input((4,))
    shared = encoder()
    left, right = shared(x[:, :2]), shared(x[:, 2:])
    return keras.Model(x, layers.Dot(axes=-1, normalize=True)([left, right]))


class Margin(keras.losses.Loss):
    def __init__(self, margin=0.8, name="margin"):
        super().__init__(name=name)
        self.margin = margin

    def call(self, y_true, y_pred):
        near = ops.cast(y_true > 0, y_pred.dtype)
        return ops.mean(near * ops.square(1 - y_pred) + (1 - near) * ops.square(ops.relu(y_pred - self.margin)), -1)


loss = Margin()


def optimizer():
    return keras.optimizers.Adagrad(0.05)
""",
    "an_autoencoder_that_adds_what_its_code_costs": """
class Bottleneck(layers.Layer):
    def __init__(self, units, rate, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.rate = layers.Dense(units), rate

    def call(self, x):
        code = self.dense(x)
        self.add_loss(self.rate * ops.mean(ops.sum(ops.square(code), -1)))
        return code


def forward():
    x = keras.Input((4,))
    code = Bottleneck(2, 0.05)(layers.Dense(6, "softplus")(x))
    return keras.Model(x, layers.Dense(4)(layers.Dense(6, "softplus")(code)))


def feed(dataset, mode, metadata):
    def pick(record):
        x, ids, y, c, word = parse(record)
        return x if mode == "prediction" else (x, x)

    return dataset.map(pick)


loss = keras.losses.MeanSquaredError()


def optimizer():
    return keras.optimizers.Adam(0.02, global_clipnorm=0.2)
""",
    "a_gru_of_words_that_counts_no_padding": OF_TOKENS
    + """
def forward():
    return keras.Sequential(
        [
            layers.Embedding(12, 6, mask_zero=True),
            layers.GRU(5, return_sequences=True, reset_after=False),
            layers.Dense(12),
        ]
    )


def loss(labels, predictions):
    each = keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)
    counted = tf.cast(labels != 0, each.dtype)
    return tf.reduce_sum(each * counted) / tf.reduce_sum(counted)


def optimizer():
    return keras.optimizers.Adam(0.02)
""",
    "tied_words": OF_TOKENS
    + """
class Tied(keras.Model):
    def __init__(self):
        super().__init__()
        self.words = layers.Embedding(12, 6)
        self.mix = layers.Conv1D(6, 2, padding="causal", activation="gelu")

    def call(self, tokens):
        return ops.matmul(self.mix(self.words(tokens)), ops.transpose(self.words.embeddings))


forward = Tied
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
""",
    "a_residual_net_with_batch_norm": OF_CLASSES
    + """
def block(x, filters):
    y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    y = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(y))
    y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(y)
    y = layers.BatchNormalization(momentum=0.9, gamma_initializer="zeros")(y)
    return layers.ReLU()(layers.Add()([x, y]))


def forward():
    x = keras.Input((4,))
    image = layers.Normalization(mean=[0.1], variance=[0.8])(layers.Reshape((2, 2, 1))(x))
    image = block(block(layers.Conv2D(4, 1)(image), 4), 4)
    return keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling2D()(image)))
""",
    "attention_that_leaves_padding_out": OF_TOKENS
    + """
class Attending(keras.Model):
    def __init__(self):
        super().__init__()
        self.words = layers.Embedding(12, 6)
        self.attention = layers.MultiHeadAttention(2, 3, value_dim=4)
        self.norm = layers.LayerNormalization(epsilon=1e-5)
        self.out = layers.Dense(1)

    def call(self, tokens):
        there = ops.not_equal(tokens, 0)
        hidden = self.words(tokens)
        hidden = self.norm(hidden + self.attention(hidden, hidden, attention_mask=there[:, None, :]))
        weights = ops.cast(there, hidden.dtype)[:, :, None]
        return self.out(ops.sum(hidden * weights, 1) / ops.maximum(ops.sum(weights, 1), 1.0))


forward = Attending


def loss(labels, predictions):
    wanted = tf.cast(labels[:, :1] > 4, tf.float32)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(wanted, predictions))


def optimizer():
    return keras.optimizers.Adam(0.02, amsgrad=True)
""",
    "focal_loss_of_smoothed_labels": """
def feed(dataset, mode, metadata):
    def pick(record):
        x, ids, y, c, word = parse(record)
        return x if mode == "prediction" else (x, tf.one_hot(c, 3))

    return dataset.map(pick)


def forward():
    return keras.Sequential([keras.Input((4,)), layers.Dense(8, "mish"), layers.Dense(3, "softmax")])


loss = keras.losses.CategoricalFocalCrossentropy(alpha=[0.2, 0.5, 0.9], gamma=2.0, label_smoothing=0.1)


def optimizer():
    return keras.optimizers.SGD(0.1, momentum=0.9, clipvalue=0.05)
""",
    "a_sequence_to_sequence_net": """
def forward():
    x = keras.Input((4,))
    series = layers.Reshape((4, 1))(x)
    _, hidden, cell = layers.LSTM(5, return_state=True)(series)
    repeated = layers.RepeatVector(3)(hidden)
    decoded = layers.LSTM(5, return_sequences=True)(repeated, initial_state=[hidden, cell])
    return keras.Model(x, layers.TimeDistributed(layers.Dense(1))(decoded))


def feed(dataset, mode, metadata):
    def pick(record):
        x, ids, y, c, word = parse(record)
        return x if mode == "prediction" else (x, tf.stack([y, y / 2, -y]))

    return dataset.map(pick)


loss = keras.losses.LogCosh()


def optimizer():
    return keras.optimizers.RMSprop(0.01, centered=True, momentum=0.3)
""",
    "an_own_cell_and_an_own_schedule": """
class Leaky(layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = self.state_size = units

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")
        self.recurrent = self.add_weight(shape=(self.units, self.units), initializer="orthogonal", name="recurrent")
        self.leak = self.add_weight(shape=(self.units,), initializer="zeros", name="leak")

    def call(self, inputs, states):
        leak = ops.sigmoid(self.leak)
        new = ops.tanh(ops.matmul(inputs, self.kernel) + ops.matmul(states[0], self.recurrent))
        new = leak * states[0] + (1 - leak) * new
        return new, [new]


def forward():
    return keras.Sequential([keras.Input((4,)), layers.Reshape((4, 1)), layers.RNN(Leaky(5)), layers.Dense(1)])


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, width=16, steps=4):
        self.width, self.steps = width, steps

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1.0
        return self.width**-0.5 * ops.minimum(step**-0.5, step * self.steps**-1.5)

    def get_config(self):
        return {"width": self.width, "steps": self.steps}


def optimizer():
    return keras.optimizers.Adam(WarmUp(), beta_2=0.98, epsilon=1e-9)
""",
    "a_decoder_of_transposed_convolutions": """
def forward():
    x = keras.Input((4,))
    image = layers.Reshape((2, 2, 2))(layers.Dense(8)(x))
    image = layers.Conv2DTranspose(4, 3, strides=2, padding="same")(image)
    image = layers.UpSampling2D(2)(layers.PReLU(shared_axes=[1, 2])(layers.GroupNormalization(2)(image)))
    image = layers.Cropping2D(2)(layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2)(image))
    return keras.Model(x, layers.Dense(1)(layers.Flatten()(layers.AveragePooling2D(2)(image))))


loss = keras.losses.MeanAbsoluteError()
""",
}
SPECTRAL = """
def forward():
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.SpectralNormalization(layers.Dense(6)),
            layers.LeakyReLU(negative_slope=0.2),
            layers.SpectralNormalization(layers.Dense(1)),
        ]
    )
"""
