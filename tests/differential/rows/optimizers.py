"""Rows about optimizers, their options and learning-rate schedules."""

from __future__ import annotations

from tests.differential.driver import Row
from tests.differential.zoo import module

S = "keras.optimizers.schedules."


def optimizer(name: str, call: str, **more: object) -> Row:
    """A row with an optimizer of Keras."""
    return Row(name, module(f"def optimizer():\n    return keras.optimizers.{call}"), "optimizers", **more)  # type: ignore[arg-type]


def scheduled(name: str, schedule: str, *parts: str, of: str = "SGD", **more: object) -> Row:
    """A row with a learning-rate schedule; there are twelve updates."""
    source = module(*parts, f"def optimizer():\n    return keras.optimizers.{of}({schedule})")
    return Row(name, source, "schedules", **more)  # type: ignore[arg-type]


ROWS = [
    optimizer("sgd", "SGD(0.1)"),
    optimizer("sgd_momentum", "SGD(0.05, momentum=0.9)"),
    optimizer("sgd_nesterov", "SGD(0.05, momentum=0.9, nesterov=True)"),
    optimizer("adam", "Adam(0.01)"),
    optimizer("adam_options", "Adam(0.01, beta_1=0.8, beta_2=0.95, epsilon=1e-3, amsgrad=True)"),
    optimizer("adamw", "AdamW(0.01, weight_decay=0.1)"),
    optimizer("adagrad", "Adagrad(0.1, initial_accumulator_value=0.2, epsilon=1e-5)"),
    optimizer("rmsprop", "RMSprop(0.01)"),
    optimizer("rmsprop_options", "RMSprop(0.01, rho=0.8, momentum=0.5, epsilon=1e-5, centered=True)"),
    optimizer("adadelta", "Adadelta(1.0, rho=0.9)"),
    optimizer("adamax", "Adamax(0.01)"),
    optimizer("ftrl", "Ftrl(0.1)"),
    optimizer(
        "ftrl_options",
        "Ftrl(0.1, learning_rate_power=-0.4, initial_accumulator_value=0.2, l1_regularization_strength=0.001, "
        "l2_regularization_strength=0.01, l2_shrinkage_regularization_strength=0.01, beta=0.1)",
    ),
    optimizer("optimizer_by_name", "get('rmsprop')"),
    optimizer("sgd_weight_decay", "SGD(0.1, weight_decay=0.01)"),
    optimizer("clipnorm", "SGD(0.1, clipnorm=0.1)", two=""),
    optimizer("clipvalue", "SGD(0.1, clipvalue=0.05)", two=""),
    optimizer("global_clipnorm", "Adam(0.01, global_clipnorm=0.1)", two=""),
    Row(
        "excluded_from_decay",
        module(
            """
            def optimizer():
                made = keras.optimizers.AdamW(0.01, weight_decay=0.1)
                made.exclude_from_weight_decay(var_names=["bias"])
                return made
            """
        ),
        "optimizers",
    ),
    Row("optimizer_params", module(), "optimizers", spec={"optimizer_params": {"lr": 0.2}}),
    # Refused, with the same words
    Row("no_optimizer_object", module("def optimizer():\n    return 0.1"), "optimizers", refused="float"),
    # Schedules
    scheduled("exponential", f"{S}ExponentialDecay(0.1, 3, 0.5)"),
    scheduled("staircase", f"{S}ExponentialDecay(0.1, 3, 0.5, staircase=True)", of="Adam"),
    scheduled("inverse_time", f"{S}InverseTimeDecay(0.1, 3, 0.5)"),
    scheduled("piecewise", f"{S}PiecewiseConstantDecay([3, 7], [0.1, 0.05, 0.01])"),
    scheduled("polynomial_cycle", f"{S}PolynomialDecay(0.1, 5, end_learning_rate=0.01, cycle=True)", of="Adam"),
    scheduled("cosine", f"{S}CosineDecay(0.1, 30, alpha=0.1)"),
]
