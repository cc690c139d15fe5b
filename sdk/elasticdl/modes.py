"""The modes of a job that model functions are called with."""

from __future__ import annotations

import enum


class Mode(enum.StrEnum):
    """The purpose of a dataset; each member equals its string."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"
