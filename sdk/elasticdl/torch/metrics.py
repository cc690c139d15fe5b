"""Metrics for ``eval_metrics_fn`` whose states add up over minibatches, tasks and workers.

Each has ``update(predictions, labels)``, ``compute()`` and ``reset()``, and a state of sums alone. They take what
a model gives: of two classes probabilities or, with ``logits=True``, logits of shape ``[N]`` or ``[N, 1]``, labels
0 and 1; of more, scores ``[N, C]`` and the numbers of the classes ``[N]``. What cannot be said is NaN.
"""

from __future__ import annotations

import torch

__all__ = ["AUC", "F1", "Accuracy", "MeanAbsoluteError", "Precision", "Recall", "RootMeanSquaredError", "TopK"]

_REACH = 16.0
_BINS = 2048


class _Ratio:
    """A sum divided by a number of records."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self.total = torch.zeros((), dtype=torch.float64)
        self.records = torch.zeros((), dtype=torch.float64)

    def compute(self) -> torch.Tensor:
        """The mean over all records so far."""
        return self.total / self.records

    def _add(self, values: torch.Tensor) -> None:
        self.total += values.double().sum()
        self.records += values.numel()


class Accuracy(_Ratio):
    """Share of records whose class is the predicted one.

    Args:
        logits: of two classes, predictions are logits.
        threshold: of two classes, the probability from which a record counts as 1.
    """

    def __init__(self, *, logits: bool = False, threshold: float = 0.5) -> None:
        super().__init__()
        self._logits, self._threshold = logits, threshold

    def update(self, predictions: torch.Tensor, labels: torch.Tensor) -> None:
        """Takes predictions ``[N]``, ``[N, 1]`` or ``[N, C]``, and labels ``[N]`` or ``[N, 1]``."""
        self._add(_decided(predictions, labels, self._logits, self._threshold) == labels.reshape(-1))


class TopK(_Ratio):
    """Share of records whose class is among the ``k`` with the highest scores.

    Args:
        k: how many count.
    """

    def __init__(self, k: int = 5) -> None:
        super().__init__()
        self._k = k

    def update(self, predictions: torch.Tensor, labels: torch.Tensor) -> None:
        """Takes scores ``[N, C]`` and classes ``[N]``; of equal scores the first classes count."""
        best = predictions.argsort(dim=1, descending=True, stable=True)[:, : self._k]
        self._add((best == labels.reshape(-1, 1)).any(1))


class MeanAbsoluteError(_Ratio):
    """Mean of the absolute errors."""

    def update(self, predictions: torch.Tensor, labels: torch.Tensor) -> None:
        """Takes numbers of equal count, in any shape."""
        self._add((predictions.double().reshape(-1) - labels.double().reshape(-1)).abs())


class RootMeanSquaredError(_Ratio):
    """Root of the mean squared error."""

    def update(self, predictions: torch.Tensor, labels: torch.Tensor) -> None:
        """Takes numbers of equal count, in any shape."""
        self._add((predictions.double().reshape(-1) - labels.double().reshape(-1)).square())

    def compute(self) -> torch.Tensor:
        """The root over all records so far."""
        return super().compute().sqrt()


class _Counts:
    """True positives, and what was predicted and what is true, of each class.

    Args:
        classes: number of classes, whose values have equal weight (macro average); by default there are two, and the
            value is that of class 1.
        logits: of two classes, predictions are logits.
        threshold: of two classes, the probability from which a record counts as 1.
    """

    def __init__(self, classes: int | None = None, *, logits: bool = False, threshold: float = 0.5) -> None:
        self._classes, self._logits, self._threshold = classes, logits, threshold
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self.hits = torch.zeros(self._classes or 2, dtype=torch.float64)
        self.predicted, self.true = self.hits.clone(), self.hits.clone()

    def update(self, predictions: torch.Tensor, labels: torch.Tensor) -> None:
        """Takes predictions ``[N]``, ``[N, 1]`` or ``[N, C]``, and labels ``[N]`` or ``[N, 1]``."""
        found, labels = _decided(predictions, labels, self._logits, self._threshold), labels.reshape(-1).long()
        size = len(self.hits)
        self.hits += torch.bincount(labels[found == labels], minlength=size)
        self.predicted += torch.bincount(found, minlength=size)
        self.true += torch.bincount(labels, minlength=size)

    def _mean(self, values: torch.Tensor) -> torch.Tensor:
        values = values.nan_to_num(0.0)  # nothing predicted, or nothing there: as scikit-learn has it
        if self._classes is None:
            return values[1]
        return values[(self.predicted + self.true) > 0].mean()


class Precision(_Counts):
    """Share of what was predicted as a class that is of it."""

    def compute(self) -> torch.Tensor:
        """The precision over all records so far."""
        return self._mean(self.hits / self.predicted)


class Recall(_Counts):
    """Share of a class that was predicted as it."""

    def compute(self) -> torch.Tensor:
        """The recall over all records so far."""
        return self._mean(self.hits / self.true)


class F1(_Counts):
    """Harmonic mean of precision and recall."""

    def compute(self) -> torch.Tensor:
        """The F1 score over all records so far."""
        return self._mean(2 * self.hits / (self.predicted + self.true))


class AUC:
    """Area under the ROC curve of two classes, from counts of both in 2,048 bins of the logit.

    Scores in one bin count as equal: the bins are 1/64 wide and reach from -16 to 16, so that the error is below
    0.001 where scores are not all within a few bins.

    Args:
        logits: predictions are logits; else probabilities.
    """

    def __init__(self, *, logits: bool = False) -> None:
        self._logits = logits
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self.negatives = torch.zeros(_BINS, dtype=torch.float64)
        self.positives = torch.zeros(_BINS, dtype=torch.float64)
        self.unordered = torch.zeros((), dtype=torch.float64)

    def update(self, predictions: torch.Tensor, labels: torch.Tensor) -> None:
        """Takes predictions ``[N]`` or ``[N, 1]``, and labels 0 and 1 ``[N]`` or ``[N, 1]``."""
        scores, labels = _of_two(predictions, labels, self._logits), labels.reshape(-1) > 0.5
        if not self._logits:
            scores = torch.logit(scores)
        self.unordered += scores.isnan().sum()
        places = ((scores.nan_to_num(0.0, _REACH, -_REACH) + _REACH) * (_BINS / (2 * _REACH))).floor()
        places = places.clamp(0, _BINS - 1).long()
        self.negatives += torch.bincount(places[~labels], minlength=_BINS)
        self.positives += torch.bincount(places[labels], minlength=_BINS)

    def compute(self) -> torch.Tensor:
        """The area over all records so far; NaN of one class only, and where a prediction was NaN."""
        below = self.negatives.cumsum(0) - self.negatives / 2
        pairs = self.negatives.sum() * self.positives.sum()
        return (self.positives * below).sum() / torch.where(self.unordered > 0, torch.nan, pairs)


def _of_two(predictions: torch.Tensor, labels: torch.Tensor, logits: bool) -> torch.Tensor:
    """Scores of two classes as float64 ``[N]``."""
    scores = predictions.detach().double().reshape(-1)
    if len(scores) != labels.numel():
        given = f"predictions {list(predictions.shape)} and labels {list(labels.shape)}"
        raise ValueError(f"{given} are not of two classes: give one of each for each record")
    if not logits and bool(((scores < 0) | (scores > 1)).any()):
        raise ValueError("predictions are no probabilities: give the metric logits=True, or the model a sigmoid")
    return scores


def _decided(predictions: torch.Tensor, labels: torch.Tensor, logits: bool, threshold: float) -> torch.Tensor:
    """The class that each prediction is for, ``[N]``."""
    if predictions.ndim == 2 and predictions.shape[1] > 1:
        return predictions.argmax(1)
    scores = _of_two(predictions, labels, logits)
    return ((scores.sigmoid() if logits else scores) >= threshold).long()
