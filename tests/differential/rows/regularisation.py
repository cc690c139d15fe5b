"""Rows about regularizers, constraints and initializers of dense layers."""

from __future__ import annotations

from tests.differential.driver import Row
from tests.differential.zoo import module, net

C, R = "keras.constraints.", "keras.regularizers."


def dense(name: str, options: str, *parts: str, family: str, **more: object) -> Row:
    """A row with a dense layer that has these options."""
    source = module(*parts, net(f"h = layers.Dense(5, {options})(h)"))
    return Row(name, source, family, **more)  # type: ignore[arg-type]


ROWS = [
    dense("l1", f"kernel_regularizer={R}L1(0.01)", family="regularizers"),
    dense("l2", f"kernel_regularizer={R}L2(0.01), bias_regularizer={R}L2(0.02)", family="regularizers"),
    dense("l1_l2", f"kernel_regularizer={R}L1L2(0.01, 0.02)", family="regularizers"),
    dense("orthogonal", f"kernel_regularizer={R}OrthogonalRegularizer(0.01)", family="regularizers"),
    dense("activity", f"activity_regularizer={R}L2(0.01)", family="regularizers"),
    dense(
        "own_regularizer",
        "kernel_regularizer=Mine()",
        """
        class Mine(keras.regularizers.Regularizer):
            def __call__(self, x):
                return 0.01 * tf.reduce_sum(x**4)

            def get_config(self):
                return {}
        """,
        family="regularizers",
    ),
    Row(
        "activity_layer",
        module(net("h = layers.ActivityRegularization(l1=0.01)(layers.Dense(4)(h))")),
        "regularizers",
    ),
    dense("non_neg", f"kernel_constraint={C}NonNeg()", family="constraints", served=True),
    dense("max_norm", f"kernel_constraint={C}MaxNorm(0.5)", family="constraints"),
    dense("max_norm_axis", f"kernel_constraint={C}MaxNorm(0.5, axis=1)", family="constraints"),
    dense("min_max_norm", f"kernel_constraint={C}MinMaxNorm(0.2, 0.6, rate=0.5)", family="constraints"),
    dense("unit_norm", f"kernel_constraint={C}UnitNorm()", family="constraints"),
    dense("bias_constraint", f"bias_constraint={C}NonNeg()", family="constraints"),
    Row(
        "constrained_adam",
        module(
            net(f"h = layers.Dense(5, kernel_constraint={C}MaxNorm(0.5), bias_constraint={C}NonNeg())(h)"),
            "def optimizer():\n    return keras.optimizers.Adam(0.05)",
        ),
        "constraints",
    ),
    Row(
        "constrained_conv",
        module(
            net(
                "h = layers.Reshape((4, 4, 2))(layers.Dense(32)(h))",
                f"h = layers.Conv2D(3, 2, kernel_constraint={C}MaxNorm(0.3, axis=[0, 1, 2]))(h)",
                "h = layers.Flatten()(h)",
            )
        ),
        "constraints",
    ),
    Row(
        "constrained_lstm",
        module(
            net("h = layers.Reshape((4, 1))(h)", f"h = layers.LSTM(3, recurrent_constraint={C}UnitNorm())(h)"),
        ),
        "constraints",
    ),
    dense(
        "own_constraint",
        "kernel_constraint=Half()",
        """
        class Half(keras.constraints.Constraint):
            def __call__(self, w):
                return tf.clip_by_value(w, -0.5, 0.5)

            def get_config(self):
                return {}
        """,
        family="constraints",
        refused="constraint",
    ),
]
