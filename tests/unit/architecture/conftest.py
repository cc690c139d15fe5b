from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

DEV = Path(__file__).resolve().parents[3] / "tools" / "dev.py"


@pytest.fixture
def dev() -> ModuleType:
    """The project's own commands, as a module of the test's own."""
    spec = spec_from_file_location("dev_command", DEV)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
