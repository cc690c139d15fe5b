"""The user's model module: found, imported, called, and its errors said in the user's own terms."""

from elasticdl_worker.user_code.modules import ModelModule, guarded, load_model_module

__all__ = ["ModelModule", "guarded", "load_model_module"]
