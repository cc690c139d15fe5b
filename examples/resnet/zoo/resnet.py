"""ResNet-20 for small colour images (He et al. 2016, "Deep Residual Learning for Image Recognition", section 4.2)."""

import tensorflow as tf

CLASSES = 10


def forward(size=32, blocks=3):
    """Images [batch, size, size, 3] to ten logits, by 6 * blocks + 2 layers."""
    images = tf.keras.Input((size, size, 3), name="image")
    values = _convolution(images, 16)
    values = tf.keras.layers.ReLU()(values)
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(blocks):
            values = _residual_block(values, filters, strides=2 if stage and not block else 1)
    values = tf.keras.layers.GlobalAveragePooling2D()(values)
    return tf.keras.Model(images, tf.keras.layers.Dense(CLASSES)(values))


def _residual_block(values, filters, strides):
    """Two convolutions, added to what came in."""
    inner = tf.keras.layers.ReLU()(_convolution(values, filters, strides=strides))
    inner = _convolution(inner, filters)
    if strides > 1:
        values = _convolution(values, filters, kernel=1, strides=strides)
    return tf.keras.layers.ReLU()(tf.keras.layers.Add()([values, inner]))


def _convolution(values, filters, kernel=3, strides=1):
    """A convolution with BatchNormalization, as in the paper."""
    values = tf.keras.layers.Conv2D(
        filters,
        kernel,
        strides=strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=tf.keras.regularizers.L2(1e-4),
    )(values)
    return tf.keras.layers.BatchNormalization(momentum=0.9)(values)


def loss(labels, predictions):
    """Mean cross-entropy of the minibatch."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(labels, [-1]), logits=predictions)
    )


def optimizer(lr=0.03, updates=200):
    """SGD with momentum, whose rate rises at first, and falls to nothing over the job's updates."""
    rate = tf.keras.optimizers.schedules.CosineDecay(lr / 10, updates, warmup_target=lr, warmup_steps=updates // 10)
    return tf.keras.optimizers.SGD(rate, momentum=0.9, nesterov=True)


def feed(dataset, mode, _):
    """Parses the bytes of images and brings them to about -1 to 1."""

    def parse(record):
        description = {"image": tf.io.FixedLenFeature([], tf.string)}
        if mode != "prediction":
            description["label"] = tf.io.FixedLenFeature([1], tf.int64)
        parsed = tf.io.parse_single_example(record, description)
        pixels = tf.io.decode_raw(parsed["image"], tf.uint8)
        size = tf.cast(tf.round(tf.sqrt(tf.cast(tf.size(pixels), tf.float32) / 3.0)), tf.int32)
        image = tf.cast(tf.reshape(pixels, [size, size, 3]), tf.float32) / 127.5 - 1.0
        return image if mode == "prediction" else (image, parsed["label"])

    return dataset.map(parse)


def eval_metrics_fn():
    """Share of images whose largest logit is the label's."""
    return {
        "accuracy": lambda labels, predictions: tf.equal(
            tf.argmax(predictions, 1, output_type=tf.int64), tf.reshape(labels, [-1])
        )
    }
