"""Statistics of a feature from the environment, or the default that the caller gives."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from elasticdl_preprocessing.constants import AnalysisEnvTemplate

_T = TypeVar("_T")


def _statistic(template: str, feature_name: str, default_value: _T, parse: Callable[[str], _T]) -> _T:
    text = os.environ.get(template.format(feature_name))
    return default_value if text is None else parse(text)


def get_min(feature_name: str, default_value: float) -> float:
    """The least value of a numeric feature."""
    return _statistic(AnalysisEnvTemplate.MIN_ENV, feature_name, default_value, float)


def get_max(feature_name: str, default_value: float) -> float:
    """The greatest value of a numeric feature."""
    return _statistic(AnalysisEnvTemplate.MAX_ENV, feature_name, default_value, float)


def get_avg(feature_name: str, default_value: float) -> float:
    """The mean of a numeric feature."""
    return _statistic(AnalysisEnvTemplate.AVG_ENV, feature_name, default_value, float)


def get_stddev(feature_name: str, default_value: float) -> float:
    """The standard deviation of a numeric feature."""
    return _statistic(AnalysisEnvTemplate.STDDEV_ENV, feature_name, default_value, float)


def get_bucket_boundaries(feature_name: str, default_value: list[float]) -> list[float]:
    """The boundaries of a numeric feature's buckets, in order, each once."""
    return _statistic(
        AnalysisEnvTemplate.BUCKET_BOUNDARIES_ENV,
        feature_name,
        default_value,
        lambda text: sorted({float(one) for one in text.split(",")}),
    )


def get_distinct_count(feature_name: str, default_value: int) -> int:
    """The number of distinct values of a feature."""
    return _statistic(AnalysisEnvTemplate.DISTINCT_COUNT_ENV, feature_name, default_value, int)


def get_vocabulary(feature_name: str, default_value: list[str] | str) -> list[str] | str:
    """The path of a file with a feature's values, one a line, or the default: a list, or a path."""
    return _statistic(AnalysisEnvTemplate.VOCABULARY_ENV, feature_name, default_value, str)
