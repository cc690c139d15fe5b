"""What a parameter server compiles, or loads, before it serves."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.main import _warm_up

pytestmark = pytest.mark.unit


def test_the_map_of_ids_grows_before_the_first_pull_does_it() -> None:
    kernels = load_kernels("numpy")
    calls: list[tuple[Any, ...]] = []

    def grow(*arguments: Any) -> Any:
        calls.append(arguments)
        return kernels.grow(*arguments)

    _warm_up(dataclasses.replace(kernels, grow=grow))

    assert calls
