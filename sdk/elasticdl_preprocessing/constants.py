"""Names of the environment variables in which statistics of a feature are handed to a model module."""

from __future__ import annotations


class AnalysisEnvTemplate:
    """Patterns of the variables' names; ``{}`` stands for the feature."""

    MIN_ENV = "_{}_min"
    MAX_ENV = "_{}_max"
    AVG_ENV = "_{}_avg"
    STDDEV_ENV = "_{}_stddev"
    BUCKET_BOUNDARIES_ENV = "_{}_boundaries"
    DISTINCT_COUNT_ENV = "_{}_distinct_count"
    VOCABULARY_ENV = "_{}_vocab"
