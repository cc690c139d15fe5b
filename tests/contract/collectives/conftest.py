from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.collectives.members import Crew, crew_of
from tests.fakes.frameworks import HAS_TORCH, count_cuda_devices

ADAPTERS = (
    "shared_memory",
    "sockets",
    "sockets over tcp",
    pytest.param(
        "gloo_tensors",
        marks=pytest.mark.skipif(not HAS_TORCH, reason="gloo needs PyTorch, which is not installed"),
    ),
    pytest.param(
        "nccl",
        marks=pytest.mark.skipif(count_cuda_devices() < 5, reason="groups of five need five CUDA devices for NCCL"),
    ),
)


@pytest.fixture(scope="module", params=ADAPTERS)
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    adapter, _, over = request.param.partition(" over ")
    # Not pytest's own folders: the paths of unix sockets are short.
    with (
        tempfile.TemporaryDirectory(prefix="edl-") as folder,
        crew_of(adapter, Path(folder), host="127.0.0.1" if over else "") as crew,
    ):
        yield crew
