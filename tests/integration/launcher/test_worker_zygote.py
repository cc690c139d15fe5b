"""What workers import can be imported by a zygote, and TensorFlow works in its forks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from elasticdl_agent.agent import PRELOADS
from elasticdl_agent.processes.child import Child, Command
from elasticdl_agent.processes.environment import common_environment
from elasticdl_agent.zygote.client import ZygoteClient, wanted
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not wanted("auto"), reason="no zygotes on this system, or too little memory"),
]

TORCH_PROGRAM = """
import json, sys
imported = "torch" in sys.modules
import torch
torch.set_num_threads(2)
print(json.dumps({"imported": imported, "rows": float((torch.ones(300, 300) @ torch.ones(300, 300))[0, 0])}))
"""
PROGRAM = """
import json, sys
imported = "tensorflow" in sys.modules
import numpy, tensorflow as tf
square = tf.function(lambda x: tf.linalg.matmul(x, x))
rows = square(tf.ones((64, 64)))[0, 0]
blas = (numpy.ones((300, 300)) @ numpy.ones((300, 300)))[0, 0]
drawn = [float(tf.random.uniform(())), float(tf.keras.random.uniform(())), float(numpy.random.rand())]
print(json.dumps({"imported": imported, "rows": float(rows), "blas": float(blas), "drawn": drawn}))
"""


async def test_tensorflow_works_in_forks_and_each_draws_its_own_numbers(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = common_environment()
    told = []
    async with ZygoteClient(PRELOADS["worker"], environment, start_delay_s=0.0) as zygote:
        # Fails when an import starts a thread that a fork would cut off.
        assert await zygote.warm()
        for number in range(2):
            log = tmp_path / f"{number}.log"
            argv = (sys.executable, "-P", str(program))
            child = await Child.start(Command(argv, environment, tmp_path, log), zygote.spawn)
            assert await child.wait() == 0, log.read_text()
            told.append(json.loads(log.read_text().splitlines()[-1]))
    for one in told:
        assert (one["imported"], one["rows"], one["blas"]) == (True, 64.0, 300.0)
    first, second = (one["drawn"] for one in told)
    assert all(a != b for a, b in zip(first, second, strict=True))


@NEEDS_TORCH
async def test_pytorch_works_in_forks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TORCH_PROGRAM)
    environment = common_environment()
    async with ZygoteClient(PRELOADS["worker.torch"], environment, start_delay_s=0.0) as zygote:
        assert await zygote.warm(), "an import started a thread that a fork would cut off"
        log = tmp_path / "log"
        argv = (sys.executable, "-P", str(program))
        child = await Child.start(Command(argv, environment, tmp_path, log), zygote.spawn)
        assert await child.wait() == 0, log.read_text()
    assert json.loads(log.read_text().splitlines()[-1]) == {"imported": True, "rows": 300.0}
