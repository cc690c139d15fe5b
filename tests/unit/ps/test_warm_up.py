"""What a parameter server compiles, or loads, before it serves."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.main import warm_up

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kernel", ["grow", "merge_rows"])
def test_what_every_job_needs_runs_before_the_first_message(kernel: str) -> None:
    """A map of ids grows at the first pull, gradients are merged at the end of the first round."""
    kernels = load_kernels("numpy")
    calls: list[tuple[Any, ...]] = []

    def noted(*arguments: Any) -> Any:
        calls.append(arguments)
        return getattr(kernels, kernel)(*arguments)

    warm_up(dataclasses.replace(kernels, **{kernel: noted}))

    assert calls
