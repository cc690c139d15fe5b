"""Finds, imports and calls the user's model module, or runs the user's script, and explains their errors."""

from elasticdl_worker.user_code.modules import (
    IN_GRAPH,
    ModelModule,
    guarded,
    imported_from,
    load_model_module,
    user_location,
    user_traceback,
)
from elasticdl_worker.user_code.scripts import run_script
from elasticdl_worker.user_code.zoo_path import importing_apart

__all__ = [
    "IN_GRAPH",
    "ModelModule",
    "guarded",
    "imported_from",
    "importing_apart",
    "load_model_module",
    "run_script",
    "user_location",
    "user_traceback",
]
