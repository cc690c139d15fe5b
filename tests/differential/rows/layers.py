"""Rows about layers: every family that Keras has, those without weights several in a model."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.data import validated
from tests.differential.driver import Row
from tests.differential.zoo import module, net

SEQUENCE = "h = layers.Reshape((4, 3))(layers.Dense(12)(h))"
IMAGE = "h = layers.Reshape((4, 4, 2))(layers.Dense(32)(h))"
VOLUME = "h = layers.Reshape((3, 3, 3, 2))(layers.Dense(54)(h))"
FLAT = "h = layers.Flatten()(h)"
ATTEND = """
class Attend(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.attention = layers.MultiHeadAttention(2, 3, dropout=0.1)

    def call(self, inputs):
        return self.attention(inputs, inputs)
"""


def chain(
    name: str, *calls: str, before: str = "", of: Sequence[str] = (), family: str = "layers", **more: object
) -> Row:
    """A row whose model calls layers one after the other; ``of`` are definitions that they need."""
    lines = [line for line in (before, *(f"h = {call}(h)" for call in calls), FLAT) if line]
    return Row(name, module(*of, net(*lines)), family, **more)  # type: ignore[arg-type]


def noisy(name: str, *calls: str, before: str = "", **more: object) -> Row:
    """A row whose model draws random numbers, so that runs agree only in what they learn, given time."""
    more = {"spec": {"num_epochs": 8}, **more}
    return chain(name, *calls, before=before, family="random", one="close", two="close", data=validated, **more)


ROWS = [
    # Dense and its kin
    chain("dense_activations", 'layers.Dense(5, "relu")', 'layers.Dense(5, "gelu")', 'layers.Dense(4, "softmax")'),
    chain("einsum_dense", 'layers.EinsumDense("abc,cd->abd", output_shape=(4, 2), bias_axes="d")', before=SEQUENCE),
    chain(
        "activations",
        "layers.Dense(6)",
        "layers.LeakyReLU()",
        "layers.ELU()",
        "layers.PReLU()",
        'layers.Activation("swish")',
        "layers.ReLU(max_value=6)",
        "layers.Softmax()",
        "layers.Identity()",
        "layers.UnitNormalization()",
    ),
    Row(
        "merging",
        module(
            net(
                "a, b = layers.Dense(3)(h), layers.Dense(3)(h)",
                "parts = [kind()([a, b]) for kind in (layers.Add, layers.Subtract, layers.Multiply)]",
                "parts += [kind()([a, b]) for kind in (layers.Average, layers.Maximum, layers.Minimum)]",
                "h = layers.Concatenate()([*parts, layers.Dot(axes=1)([a, b])])",
            )
        ),
        "layers",
    ),
    chain(
        "shapes",
        "layers.Permute((2, 1))",
        "layers.ZeroPadding1D(1)",
        "layers.Cropping1D(1)",
        "layers.UpSampling1D(2)",
        "layers.Masking()",
        "layers.Flatten()",
        "layers.RepeatVector(2)",
        before=SEQUENCE,
    ),
    chain("lambda_layer", "layers.Lambda(lambda t: t * 2 + 1, output_shape=(4,))", "layers.Rescaling(0.5, 0.1)"),
    chain("time_distributed", "layers.TimeDistributed(layers.Dense(2))", before=SEQUENCE),
    # Convolutions
    chain("conv1d", 'layers.Conv1D(3, 2, activation="relu")', "layers.Conv1DTranspose(2, 2)", before=SEQUENCE),
    chain("separable1d", "layers.SeparableConv1D(3, 2)", "layers.DepthwiseConv1D(2)", before=SEQUENCE),
    chain("conv2d", 'layers.Conv2D(3, 2, activation="relu")', "layers.Conv2DTranspose(2, 2)", before=IMAGE),
    chain("depthwise2d", "layers.DepthwiseConv2D(2)", "layers.SeparableConv2D(3, 2)", before=IMAGE),
    chain("conv3d", "layers.Conv3D(2, 2)", "layers.Conv3DTranspose(1, 2)", before=VOLUME),
    chain("conv_lstm", "layers.ConvLSTM1D(2, 2)", before="h = layers.Reshape((2, 3, 2))(layers.Dense(12)(h))"),
    chain("conv_lstm2d", "layers.ConvLSTM2D(2, 2)", before="h = layers.Reshape((2, 3, 3, 1))(layers.Dense(18)(h))"),
    chain(
        "conv_lstm3d", "layers.ConvLSTM3D(1, 2)", before="h = layers.Reshape((2, 2, 2, 2, 1))(layers.Dense(16)(h))"
    ),
    # Pooling
    chain(
        "pooling1d",
        "layers.MaxPooling1D(2, strides=1)",
        "layers.AveragePooling1D(2, strides=1)",
        "layers.GlobalAveragePooling1D()",
        before=SEQUENCE,
    ),
    chain("global_max1d", "layers.GlobalMaxPooling1D()", before=SEQUENCE),
    chain(
        "pooling2d",
        "layers.MaxPooling2D(2, strides=1)",
        "layers.AveragePooling2D(2, strides=1)",
        "layers.GlobalAveragePooling2D()",
        before=IMAGE,
    ),
    chain("global_max2d", "layers.GlobalMaxPooling2D()", before=IMAGE),
    chain(
        "pooling3d",
        "layers.MaxPooling3D(2, strides=1)",
        "layers.AveragePooling3D(2, strides=1)",
        "layers.GlobalAveragePooling3D()",
        before=VOLUME,
    ),
    chain("global_max3d", "layers.GlobalMaxPooling3D()", before=VOLUME),
    chain(
        "adaptive_pooling",
        "layers.AdaptiveAveragePooling2D(3)",
        "layers.AdaptiveMaxPooling2D(2)",
        "layers.Reshape((4, 2))",
        "layers.AdaptiveAveragePooling1D(3)",
        "layers.AdaptiveMaxPooling1D(2)",
        before=IMAGE,
    ),
    chain(
        "image_shapes",
        "layers.ZeroPadding2D(1)",
        "layers.Cropping2D(1)",
        "layers.UpSampling2D(2)",
        "layers.Resizing(3, 3)",
        "layers.CenterCrop(2, 2)",
        before=IMAGE,
    ),
    chain(
        "volume_shapes", "layers.ZeroPadding3D(1)", "layers.Cropping3D(1)", "layers.UpSampling3D(2)", before=VOLUME
    ),
    # Normalisation
    chain("batch_norm", "layers.Dense(5)", "layers.BatchNormalization(momentum=0.9)", family="state"),
    chain("batch_norm_default", "layers.Dense(5)", "layers.BatchNormalization()", family="state", served=True),
    chain("layer_norm", "layers.Dense(5)", "layers.LayerNormalization()", "layers.RMSNormalization()"),
    chain("group_norm", "layers.GroupNormalization(2)", before=IMAGE),
    chain(
        "spectral_norm",
        "layers.SpectralNormalization(layers.Dense(5))",
        family="state",
        refused="assigns to the trained weight",
    ),
    # Recurrence and attention
    chain("lstm", "layers.LSTM(3)", before=SEQUENCE),
    chain("gru", "layers.GRU(3)", before=SEQUENCE),
    chain("simple_rnn", "layers.SimpleRNN(3)", before=SEQUENCE),
    chain("bidirectional", "layers.Bidirectional(layers.LSTM(2, return_sequences=True))", before=SEQUENCE),
    chain(
        "stacked_cells",
        "layers.RNN(layers.StackedRNNCells([layers.LSTMCell(2), layers.GRUCell(2), layers.SimpleRNNCell(2)]))",
        before=SEQUENCE,
    ),
    Row("multi_head", module(net(SEQUENCE, "h = layers.MultiHeadAttention(2, 3)(h, h)", FLAT)), "layers"),
    Row("grouped_query", module(net(SEQUENCE, "h = layers.GroupQueryAttention(2, 2, 1)(h, h)", FLAT)), "layers"),
    Row(
        "attention",
        module(
            net(
                SEQUENCE,
                "h = layers.Attention(use_scale=True)([h, h])",
                "h = layers.AdditiveAttention()([h, h])",
                FLAT,
            )
        ),
        "layers",
    ),
    # Randomness
    noisy("dropout", "layers.Dense(16)", "layers.Dropout(0.3)"),
    noisy("gaussian", "layers.Dense(16)", "layers.GaussianDropout(0.2)", "layers.GaussianNoise(0.1)"),
    noisy("alpha_dropout", 'layers.Dense(16, "selu")', "layers.AlphaDropout(0.1)"),
    noisy("spatial_dropout1d", "layers.SpatialDropout1D(0.2)", before=SEQUENCE),
    noisy("spatial_dropout2d", "layers.SpatialDropout2D(0.2)", before=IMAGE),
    noisy("spatial_dropout3d", "layers.SpatialDropout3D(0.2)", before=VOLUME),
    noisy("recurrent_dropout", "layers.LSTM(6, dropout=0.1, recurrent_dropout=0.1)", before=SEQUENCE),
    noisy("attention_dropout", "layers.LSTM(6, return_sequences=True)", "Attend()", before=SEQUENCE, of=[ATTEND]),
    noisy(
        "random_images",
        'layers.RandomFlip("horizontal")',
        "layers.RandomRotation(0.02)",
        "layers.RandomTranslation(0.05, 0.05)",
        "layers.RandomZoom(0.05)",
        before=IMAGE,
    ),
]
