"""What is installed of the frameworks that are extras, and the mark of tests that need them."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

HAS_TORCH = find_spec("torch") is not None
NEEDS_TORCH = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")


def count_cuda_devices() -> int:
    """NVIDIA's devices on this machine that the PyTorch that is installed can use, seen without importing it."""
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) if _torch_has_cuda() else 0


def _torch_has_cuda() -> bool:
    """Whether PyTorch was built with CUDA, as a file of it says."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    return runpy.run_path(str(Path(found.origin).with_name("version.py"))).get("cuda") is not None
