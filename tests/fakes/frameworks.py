"""What is installed of the frameworks that are extras, and the mark of tests that need them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HAS_TORCH = find_spec("torch") is not None
NEEDS_TORCH = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed: pip install 'elasticdl[torch]'")


def count_cuda_devices() -> int:
    """NVIDIA's devices on this machine, seen without importing a framework."""
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) if HAS_TORCH else 0
