"""Finds, imports and calls the user's model module, and explains its errors."""

from elasticdl_worker.user_code.modules import ModelModule, guarded, load_model_module

__all__ = ["ModelModule", "guarded", "load_model_module"]
