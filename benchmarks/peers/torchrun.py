"""The same loss in a job under ``torchrun --max-restarts``: all processes are ended, and new ones begin again.

As a program it is one of those processes: it trains, and leaves the times of its first steps in a folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

DEADLINE_S = 90.0
_END_S = 20.0
_POLL_S = 0.005
_BEGUN = 20


def restart_seconds(folder: Path, members: int, batch: int) -> float:
    """Seconds from a member's ``SIGKILL`` until the restarted job has made a step.

    Args:
        folder: an empty one.
        members: number of processes.
        batch: images of a step in all of them.

    Raises:
        RuntimeError: the job did not get so far.
    """
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(members)]
    places = ["--max-restarts", "3", "--monitor-interval", "0.1"]
    program = ["-m", "benchmarks.peers.torchrun", str(folder), str(batch // members)]
    # With the store that torchrun shares among launches (2.13), the processes of a new launch find the addresses of
    # the old ones in it, cannot connect, and are started once more 5 s later: this is torchrun at its best.
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    with (folder / "output").open("wb") as output:
        command = [sys.executable, *torchrun, *places, *program]
        job = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        before = _await(job, folder, members, 0, _BEGUN)
        killed = time.monotonic()
        os.kill(int(before[members // 2]["pid"]), signal.SIGKILL)
        after = _await(job, folder, members, 1, 1)
        return min(float(one["first"]) for one in after) - killed
    finally:
        _end(job)


def _await(
    job: subprocess.Popen[bytes], folder: Path, members: int, restarts: int, steps: int
) -> list[dict[str, float]]:
    """The results that all members of a launch have left, once each has made so many steps."""
    paths = [folder / f"{restarts}-{rank}.json" for rank in range(members)]
    end = time.monotonic() + DEADLINE_S
    while job.poll() is None and time.monotonic() < end:
        found = [json.loads(path.read_text()) for path in paths if path.exists()]
        if len(found) == members and all(one["steps"] >= steps for one in found):
            return found
        time.sleep(_POLL_S)
    said = (folder / "output").read_text(errors="replace")[-2000:]
    raise RuntimeError(f"launch {restarts} under torchrun made no step within {DEADLINE_S:.0f} s: {said}")


def _end(job: subprocess.Popen[bytes]) -> None:
    """Ends torchrun and its processes, which have sessions of their own."""
    children = []
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(job.pid).children(recursive=True)
    job.kill()
    job.wait(_END_S)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    _, alive = psutil.wait_procs(children, _END_S)
    if alive:
        raise RuntimeError(f"processes under torchrun do not end: {alive}")


def main(folder: Path, batch: int) -> None:
    """One process of the job: trains until it is ended."""
    from benchmarks.peers import images_ddp  # first: it says which network gloo takes

    step = images_ddp.make_step(batch)
    name = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['RANK']}.json"
    first = 0.0
    for steps in range(1, 1 << 30):
        step(steps)
        first = first or time.monotonic()
        if steps in (1, _BEGUN):
            draft = folder / f".{name}"
            draft.write_text(json.dumps({"pid": os.getpid(), "first": first, "steps": steps}))
            draft.rename(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
