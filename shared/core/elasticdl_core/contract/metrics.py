"""Metrics."""

from __future__ import annotations

from elasticdl_core.contract.row import Subject, Verdict, rows

_METRIC = Subject.METRIC

METRICS = (
    rows(
        _METRIC,
        Verdict.HONOURED,
        "keras.metrics.Metric",
        "keeps its state over minibatches, and states are added over workers; that this gives the same is tried on "
        "the first minibatch for classes that are not Keras' own",
    ),
    rows(
        _METRIC,
        Verdict.HONOURED,
        "function",
        "of (labels, predictions) gives one value for each record, and the mean is taken",
    ),
    rows(
        _METRIC,
        Verdict.TRANSLATED,
        "function_of_scalar",
        "gives the mean over the minibatch and is weighed by its records; that it is such a mean is tried on "
        "each minibatch",
    ),
    rows(
        _METRIC,
        Verdict.TRANSLATED,
        "mean_of_a_minibatch",
        "is what MeanSquaredError and its kin make of labels and predictions of shape [N]: it is weighed by its "
        "records, so that the metric is the mean over all of them; that it is such a mean is tried on each "
        "minibatch",
    ),
    rows(
        _METRIC,
        Verdict.REFUSED,
        "function_of_no_mean",
        "gives for a minibatch what is no mean over its records, so that it depends on how records are divided",
        "give one value for each record, or a Keras metric, which keeps a state",
    ),
    rows(
        _METRIC,
        Verdict.REFUSED,
        "state_that_does_not_add",
        "keeps a state that cannot be added over minibatches, as a largest value cannot",
        "keep sums and counts in its variables, or counts by thresholds, as AUCs of Keras and torchmetrics may do",
    ),
    rows(
        _METRIC,
        Verdict.REFUSED,
        "state_outside_variables",
        "keeps a state in attributes of Python, which no other worker would be told",
        "make its state in __init__ by add_variable (add_weight), and change it by assign_add",
    ),
    rows(
        _METRIC,
        Verdict.REFUSED,
        "output_without_name",
        "is for a named output, of a model whose outputs have no names",
        "let the model return a dict, e.g. {'price': ..., 'click': ...}",
    ),
    rows(
        _METRIC,
        Verdict.REFUSED,
        "accuracy acc crossentropy ce",
        "is a name that Keras resolves by the shapes in compile(), and which alone does not say what is meant",
        "give an object, e.g. keras.metrics.SparseCategoricalAccuracy()",
    ),
)
