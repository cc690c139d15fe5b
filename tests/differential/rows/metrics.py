"""Rows about metrics and evaluations."""

from __future__ import annotations

from tests.differential.data import validated
from tests.differential.driver import Row
from tests.differential.zoo import module, net

M = "keras.metrics."
BINARY = (
    net(last='layers.Dense(1, activation="sigmoid")(h)'),
    """
    def feed(dataset, mode, metadata):
        def pick(record):
            parsed = parse(record)
            return parsed["x"] if mode == "prediction" else (parsed["x"], tf.cast(parsed["c"][None] > 0, tf.float32))

        return dataset.map(pick)
    """,
    "loss = keras.losses.BinaryCrossentropy()",
)
CLASSES = (
    net(last='layers.Dense(3, activation="softmax")(h)'),
    "feed = give('x', 'c')",
    "loss = keras.losses.SparseCategoricalCrossentropy()",
)
ONE_HOT = (
    net(last='layers.Dense(3, activation="softmax")(h)'),
    """
    def feed(dataset, mode, metadata):
        def pick(record):
            parsed = parse(record)
            return parsed["x"] if mode == "prediction" else (parsed["x"], tf.one_hot(parsed["c"], 3))

        return dataset.map(pick)
    """,
    "loss = keras.losses.CategoricalCrossentropy()",
)


def metrics(name: str, *parts: str, of: tuple[str, ...] = (), **more: object) -> Row:
    """A row with these metrics, each ``name=expression``."""
    given = ", ".join(f'"{part.partition("=")[0]}": {part.partition("=")[2]}' for part in parts)
    source = module(*of, f"def eval_metrics_fn():\n    return {{{given}}}")
    options: dict[str, object] = {"data": validated, "two": "", **more}
    return Row(name, source, "metrics", **options)  # type: ignore[arg-type]


ROWS = [
    metrics(
        "regression_metrics",
        f"mae={M}MeanAbsoluteError()",
        f"mse={M}MeanSquaredError()",
        f"rmse={M}RootMeanSquaredError()",
        f"mape={M}MeanAbsolutePercentageError()",
        f"msle={M}MeanSquaredLogarithmicError()",
        f"cosine={M}CosineSimilarity()",
        f"logcosh={M}LogCoshError()",
        f"wrapped={M}MeanMetricWrapper(lambda y, p: tf.square(y - p))",
        f"r2={M}R2Score()",
        two="equal",
    ),
    metrics(
        "binary_metrics",
        f"accuracy={M}BinaryAccuracy()",
        f"ce={M}BinaryCrossentropy()",
        f"auc={M}AUC()",
        f"pr={M}AUC(curve='PR')",
        f"precision={M}Precision()",
        f"recall={M}Recall()",
        f"tp={M}TruePositives()",
        f"tn={M}TrueNegatives()",
        f"fp={M}FalsePositives()",
        f"fn={M}FalseNegatives()",
        f"hinge={M}Hinge()",
        f"squared_hinge={M}SquaredHinge()",
        of=BINARY,
        two="equal",
    ),
    metrics(
        "threshold_metrics",
        f"a={M}PrecisionAtRecall(0.5)",
        f"b={M}RecallAtPrecision(0.5)",
        f"c={M}SensitivityAtSpecificity(0.5)",
        f"d={M}SpecificityAtSensitivity(0.5)",
        f"iou={M}BinaryIoU()",
        of=BINARY,
    ),
    metrics(
        "class_metrics",
        f"accuracy={M}SparseCategoricalAccuracy()",
        f"ce={M}SparseCategoricalCrossentropy()",
        f"top={M}SparseTopKCategoricalAccuracy(2)",
        f"iou={M}MeanIoU(3, sparse_y_pred=False)",
        f"one={M}IoU(3, [0, 1], sparse_y_pred=False)",
        of=CLASSES,
    ),
    metrics(
        "one_hot_metrics",
        f"accuracy={M}CategoricalAccuracy()",
        f"ce={M}CategoricalCrossentropy()",
        f"top={M}TopKCategoricalAccuracy(2)",
        f"hinge={M}CategoricalHinge()",
        f"f1={M}F1Score()",
        f"fbeta={M}FBetaScore(beta=2.0)",
        f"kl={M}KLDivergence()",
        f"poisson={M}Poisson()",
        f"mean={M}OneHotMeanIoU(3)",
        f"one={M}OneHotIoU(3, [0, 1])",
        of=ONE_HOT,
    ),
    metrics("correlation_metrics", f"pearson={M}PearsonCorrelation()", f"concordance={M}ConcordanceCorrelation()"),
    metrics("metric_by_name", "mse='mean_squared_error'"),
    metrics("metric_function", "gap=lambda labels, predictions: tf.abs(labels - predictions)"),
    metrics("metric_scalar", "gap=lambda labels, predictions: tf.reduce_mean(tf.abs(labels - predictions))"),
    metrics(
        "metric_scalar_no_mean", "gap=lambda labels, predictions: tf.reduce_max(labels - predictions)", refused="gap"
    ),
    metrics("metric_ambiguous", "a='accuracy'", refused="accuracy"),
    metrics(
        "metric_own",
        "mine=Mine()",
        of=(
            """
            class Mine(keras.metrics.Metric):
                def __init__(self):
                    super().__init__(name="mine")
                    self.total = self.add_variable(shape=(), initializer="zeros", name="total")

                def update_state(self, labels, predictions, sample_weight=None):
                    self.total.assign_add(tf.reduce_sum(tf.abs(labels - predictions)))

                def result(self):
                    return self.total
            """,
        ),
    ),
    metrics(
        "metric_own_maximum",
        "mine=Mine()",
        of=(
            """
            class Mine(keras.metrics.Metric):
                def __init__(self):
                    super().__init__(name="mine")
                    self.most = self.add_variable(shape=(), initializer="zeros", name="most")

                def update_state(self, labels, predictions, sample_weight=None):
                    self.most.assign(tf.maximum(self.most, tf.reduce_max(tf.abs(labels - predictions))))

                def result(self):
                    return self.most
            """,
        ),
        refused="mine",
    ),
    metrics(
        "metric_own_attributes",
        "mine=Mine()",
        of=(
            """
            class Mine(keras.metrics.Metric):
                def __init__(self):
                    super().__init__(name="mine")
                    self.total = 0.0

                def update_state(self, labels, predictions, sample_weight=None):
                    self.total += float(tf.reduce_sum(tf.abs(labels - predictions)))

                def result(self):
                    return self.total
            """,
        ),
        refused="keeps no variables",
    ),
    metrics("metric_failing", "gap=lambda labels, predictions: 1 / 0", refused="ZeroDivisionError"),
    metrics("metric_not_one", "gap=3", refused="gap"),
    metrics("metric_nan", "gap=lambda labels, predictions: tf.math.log(labels * 0.0 - 1.0)"),
    metrics("evaluation_steps", f"mae={M}MeanAbsoluteError()", spec={"evaluation_steps": 4}, one="close"),
    metrics(
        "metric_of_flat_predictions",
        f"mse={M}MeanSquaredError()",
        f"mae={M}MeanAbsoluteError()",
        of=(
            net(last="layers.Reshape(())(layers.Dense(1)(h))"),
            "def feed(dataset, mode, metadata):\n"
            "    return give('x')(dataset, mode, metadata).map(lambda x, y: (x, y[0]))",
        ),
        spec={"minibatch_size": 5},
    ),
    metrics("no_metrics"),
    Row(
        "nested_metrics_of_list",
        module(
            """
            def forward():
                i = keras.Input((4,))
                return keras.Model(i, [layers.Dense(1)(i), layers.Dense(2)(i)])


            def loss(labels, predictions):
                return tf.reduce_mean(tf.square(labels - predictions[0])) + tf.reduce_mean(tf.square(predictions[1]))


            def eval_metrics_fn():
                return {"first": {"error": keras.metrics.MeanSquaredError()}}
            """
        ),
        "metrics",
        data=validated,
        refused="first",
    ),
]
