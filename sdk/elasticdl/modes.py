"""What a model function is called for."""

from __future__ import annotations

import enum


class Mode(enum.StrEnum):
    """What ``feed`` makes a dataset for; each is also the plain string."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"
