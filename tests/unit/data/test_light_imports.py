from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

HEAVY = ("tensorflow", "keras", "torch", "sklearn", "numba", "fsspec", "pandas", "pyarrow")


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("elasticdl.data", HEAVY),
        ("elasticdl.data.generate", HEAVY),
        ("recordio", HEAVY),
        ("elasticdl.cli.data", (*HEAVY, "numpy")),
    ],
)
def test_importing_loads_nothing_heavy(module: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*(name for name in {unwanted!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
