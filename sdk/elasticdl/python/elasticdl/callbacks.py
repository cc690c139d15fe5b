"""Callbacks at the original project's import path."""

from __future__ import annotations

from elasticdl.callbacks import EarlyStopping, LearningRateScheduler, MaxStepsStopping, SavedModelExporter

__all__ = ["EarlyStopping", "LearningRateScheduler", "MaxStepsStopping", "SavedModelExporter"]
