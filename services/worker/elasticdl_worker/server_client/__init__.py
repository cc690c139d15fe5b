"""The low-level door: parameter servers for programs of one's own, numpy in and numpy out."""

from elasticdl_core.model import DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_worker.server_client.client import ParameterServerClient

__all__ = [
    "DenseSpec",
    "InitializerSpec",
    "OptimizerSpec",
    "ParameterServerClient",
    "TableSpec",
    "UpdateMode",
]
