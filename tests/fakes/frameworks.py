"""What is installed of the frameworks that are extras, and the mark of tests that need them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

HAS_TORCH = find_spec("torch") is not None
NEEDS_TORCH = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed: pip install 'elasticdl[torch]'")
