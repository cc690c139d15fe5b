"""Rows about optimizers, their options and learning-rate schedules."""

from __future__ import annotations

from tests.differential.data import validated
from tests.differential.driver import Row
from tests.differential.rows.embeddings import FLAT, SMALL, TABLES, ids
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
    Row(
        "table_excluded_from_decay",
        module(
            ids(SMALL, FLAT),
            """
            def optimizer():
                made = keras.optimizers.AdamW(0.01, weight_decay=0.1)
                made.exclude_from_weight_decay(var_names=["embedding"])
                return made
            """,
        ),
        "optimizers",
        spec=TABLES,
    ),
    Row(
        "other_defaults",
        module(
            """
            class Slow(keras.optimizers.Adam):
                def __init__(self, learning_rate=0.002, beta_1=0.7, **options):
                    super().__init__(learning_rate, beta_1=beta_1, **options)


            def optimizer():
                return Slow()
            """
        ),
        "optimizers",
    ),
    Row("optimizer_params", module(), "optimizers", spec={"optimizer_params": {"lr": 0.2}}),
    # Refused, with the same words
    optimizer("nadam", "Nadam(0.01)", refused="Nadam"),
    optimizer("adafactor", "Adafactor(0.01)", refused="Adafactor"),
    optimizer("lion", "Lion(0.01)", refused="Lion"),
    optimizer("lamb", "Lamb(0.01)", refused="Lamb"),
    optimizer("muon", "Muon(0.01)", refused="Muon"),
    optimizer("schedule_free", "ScheduleFreeAdamW(0.01)", refused="ScheduleFreeAdamW"),
    optimizer(
        "loss_scale_optimizer", "LossScaleOptimizer(keras.optimizers.Adam(0.01))", refused="LossScaleOptimizer"
    ),
    optimizer("multi_optimizer", "MultiOptimizer([])", refused="ptimizer"),
    optimizer("ema", "Adam(0.01, use_ema=True)", refused="use_ema"),
    optimizer("loss_scale_factor", "Adam(0.01, loss_scale_factor=8.0)", refused="loss_scale_factor"),
    optimizer("accumulation", "Adam(0.01, gradient_accumulation_steps=2)", refused="gradient_accumulation_steps"),
    Row(
        "own_optimizer",
        module(
            """
            class Adam(keras.optimizers.Adam):
                def update_step(self, gradient, variable, learning_rate):
                    self.assign_sub(variable, gradient * 0.001)


            def optimizer():
                return Adam(0.01)
            """
        ),
        "optimizers",
        refused="Adam",
    ),
    Row(
        "optimizer_from_scratch",
        module(
            """
            class Mine(keras.optimizers.Optimizer):
                def update_step(self, gradient, variable, learning_rate):
                    self.assign_sub(variable, gradient * 0.001)


            def optimizer():
                return Mine(0.01)
            """
        ),
        "optimizers",
        refused="ine",
    ),
    optimizer("callable_rate", "SGD(lambda: 0.1)", refused="learning rate"),
    Row("no_optimizer_object", module("def optimizer():\n    return 0.1"), "optimizers", refused="float"),
    # Schedules
    scheduled("exponential", f"{S}ExponentialDecay(0.1, 3, 0.5)"),
    scheduled("staircase", f"{S}ExponentialDecay(0.1, 3, 0.5, staircase=True)", of="Adam"),
    scheduled("inverse_time", f"{S}InverseTimeDecay(0.1, 3, 0.5)"),
    scheduled("piecewise", f"{S}PiecewiseConstantDecay([3, 7], [0.1, 0.05, 0.01])"),
    scheduled("piecewise_to_zero", f"{S}PiecewiseConstantDecay([3, 7], [0.1, 0.05, 0.0])"),
    scheduled("polynomial_to_zero", f"{S}PolynomialDecay(0.1, 8, end_learning_rate=0.0, power=2.0)"),
    scheduled("polynomial_cycle", f"{S}PolynomialDecay(0.1, 5, end_learning_rate=0.01, cycle=True)", of="Adam"),
    scheduled("cosine", f"{S}CosineDecay(0.1, 30, alpha=0.1)"),
    scheduled("cosine_to_zero", f"{S}CosineDecay(0.1, 8)"),
    scheduled("cosine_to_zero_adam", f"{S}CosineDecay(0.01, 4)", of="Adam"),
    scheduled("cosine_warm_up", f"{S}CosineDecay(0.0, 8, warmup_target=0.1, warmup_steps=4)"),
    scheduled("cosine_restarts", f"{S}CosineDecayRestarts(0.1, 4)"),
    scheduled("constant_zero", "0.0", of="Adam"),
    scheduled(
        "own_schedule",
        "Wave()",
        """
        class Wave(keras.optimizers.schedules.LearningRateSchedule):
            def __call__(self, step):
                return 0.1 * tf.cast(step % 3, tf.float32)

            def get_config(self):
                return {}
        """,
    ),
    scheduled("schedule_decay", f"{S}CosineDecay(0.1, 8)", of="AdamW"),
    scheduled(
        "negative_schedule",
        "Wave()",
        """
        class Wave(keras.optimizers.schedules.LearningRateSchedule):
            def __call__(self, step):
                return 0.05 - 0.02 * tf.cast(step, tf.float32)

            def get_config(self):
                return {}
        """,
        refused="learning rate schedule",
    ),
    scheduled(
        "schedule_groups",
        f"{S}PiecewiseConstantDecay([1], [0.1, 0.05])",
        spec={"get_model_steps": 3},
        one="close",
        two="close",
        data=validated,
    ),
]
