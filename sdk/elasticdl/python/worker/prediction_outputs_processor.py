"""The base of prediction processors at the original project's import path."""

from __future__ import annotations

from elasticdl.prediction import BasePredictionOutputsProcessor

__all__ = ["BasePredictionOutputsProcessor"]
