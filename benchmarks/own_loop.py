"""A training loop of one's own with ``ElasticDataset``, against the same loop with a plain ``DataLoader``.

It is a part of ``./dev bench torch``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Report
from benchmarks.harness.timing import Sample

GOAL = 0.97
_ABOUT = """## A loop of one's own

A convolutional network on {records:,} images in memory, {batch} a batch, by Adam: seconds of a pass. *Plain* has a
`DataLoader` and `torch.optim`. *Elastic* has the `DataLoader` over an `ElasticDataset` and commits each
batch; *distributed* has a `distributed_optimizer` instead. Each measurement is the best pass of a process with one
thread; the sides take turns."""
RECORDS, BATCH = 2048, 64
SCRIPT = """
import json, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

side, passes = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(1)
data = TensorDataset(torch.rand({records}, 1, 28, 28), torch.randint(0, 10, ({records},)))
model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(4608, 10),
)
optimizer = torch.optim.Adam(model.parameters())
if side != "plain":
    import elasticdl.torch
    data = elasticdl.torch.ElasticDataset(data)
if side == "distributed":
    optimizer = elasticdl.torch.distributed_optimizer(optimizer, model=model)
loader = DataLoader(data, batch_size={batch})
times = []
def train():
    began = time.perf_counter()
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if side == "elastic":
            data.commit()
    times.append(time.perf_counter() - began)
if side == "plain":
    for _ in range(passes):
        train()
else:
    elasticdl.torch.run(train)
with open(sys.argv[3], "w") as file:
    json.dump(times[1:], file)
"""


def compare_own_loops(report: Report, *, rounds: int) -> None:
    """Adds the comparison to a report.

    Args:
        report: the report.
        rounds: measurements of each side.
    """
    report.text(_ABOUT.format(records=RECORDS, batch=BATCH))
    sides: dict[str, list[float]] = {"plain": [], "elastic": [], "distributed": []}
    with tempfile.TemporaryDirectory(prefix="elasticdl-own-loop-") as name:
        folder = Path(name)
        (folder / "loop.py").write_text(SCRIPT.format(records=RECORDS, batch=BATCH))
        for _ in range(rounds):
            for side, found in sides.items():
                found.append(_seconds(folder, side))
    samples = {side: Sample(tuple(found)) for side, found in sides.items()}
    rows = [[side, sample.median, samples["plain"].over(sample)] for side, sample in samples.items()]
    report.table(["loop", "seconds of a pass", "speed, plain = 1"], rows)
    report.target("torch_loop_overhead", samples["plain"].over(samples["elastic"]), GOAL)


def _seconds(folder: Path, side: str, passes: int = 4) -> float:
    """The least seconds of a pass, in a process of its own."""
    times = folder / "times.json"
    own = ["loop.py", side, str(passes), str(times)]
    command = [sys.executable, *own]
    if side != "plain":
        flags = ["--local", f"--minibatch_size={BATCH}", f"--num_epochs={passes}", f"--output={folder / 'out'}"]
        command = [sys.executable, "-m", "elasticdl", "run", own[0], *flags, "--", *own[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{side} failed: {done.stdout}{done.stderr}")
    return float(min(json.loads(times.read_text())))
