"""A program that has only the published file trains on a real parameter server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl import ParameterServerClient

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]
PROGRAM = Path(__file__).parent / "published" / "linear_model.py"


def test_a_program_that_has_the_published_file_trains_a_linear_model_with_a_table() -> None:
    with ParameterServerClient.local() as client:
        access = client.access
        done = subprocess.run(
            [sys.executable, str(PROGRAM), access.addresses[0]],
            env={**os.environ, "TOKEN": access.token, "PYTHONPATH": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.splitlines()[-1])
        assert told["version"] == 300
        assert told["loss"] < 1e-6
        np.testing.assert_allclose(told["w"], [1, -2, 3], atol=1e-3)
        np.testing.assert_allclose(told["t"], [0, 1, 2, 3, 4], atol=1e-2)
        # The client of this project reads what that program trained.
        np.testing.assert_allclose(client.pull().dense["w"].ravel(), [1, -2, 3], atol=1e-3)
