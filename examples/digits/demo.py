"""The main job from nothing to a checked export; `./dev demo` runs it.

Brings up a local cluster in a directory of its own, generates the digits, submits the training job with two parameter
servers, scales its workers 1 -> 3 -> 2 while it runs, downloads the export, checks it in a plain Keras process, and
takes everything down again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from elasticdl import Client

HERE = Path(__file__).resolve().parent
WANTED_ACCURACY = 0.97
STARTED = time.monotonic()
ENDED = {"SUCCEEDED", "SUCCEEDED_WITH_SKIPS", "FAILED", "CANCELLED"}


def say(text: str) -> None:
    """Prints one step with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:6.1f} s] {text}", flush=True)


def elasticdl(*arguments: str, timeout: float = 300) -> str:
    """Runs the command line as a user would; returns what it printed on stdout."""
    command = [sys.executable, "-m", "elasticdl", *arguments]
    say("$ elasticdl " + " ".join(arguments))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):  # which a terminal tells all of its processes
                process.terminate()
            process.communicate(timeout=60)  # it takes down what it has begun
            raise
    if process.returncode != 0:
        print(output)
        raise SystemExit(f"elasticdl {arguments[0]} ended with {process.returncode}")
    return output.strip()


def describe(job: dict) -> str:
    """One line about a job."""
    status = job.get("status") or {}
    progress = status.get("progress") or {}
    done, total = progress.get("records_done", 0), progress.get("records_total", 0)
    width = 24
    filled = int(width * done / total) if total else 0
    parts = [
        f"{job['state']:<9} [{'#' * filled}{'.' * (width - filled)}] {done:>6}/{total} records",
        f"epoch {progress.get('epoch', 0)}/{progress.get('num_epochs', 0)}",
        f"{active_workers(job)} of {job['target_workers']} workers",
    ]
    if status.get("samples_per_second"):
        parts.append(f"{status['samples_per_second']:,.0f} samples/s")
    if status.get("loss") is not None:
        parts.append(f"loss {status['loss']:.4f}")
    parts += [f"{name} {value:.4f}" for name, value in (status.get("metrics") or {}).items() if name != "loss"]
    return "  ".join(parts)


def active_workers(job: dict) -> int:
    """Number of workers that have joined the training and not left it."""
    workers = (job.get("status") or {}).get("workers") or []
    return sum(worker.get("records", 0) > 0 and worker.get("phase") != "draining" for worker in workers)


def follow(client: Client, job_id: str, *, every_s: float = 2.0) -> Iterator[dict]:
    """Yields the job about twice a second until it has ended; prints a line every ``every_s`` seconds."""
    printed = 0.0
    while True:
        job = client.get(job_id)
        if time.monotonic() - printed >= every_s:
            say(describe(job))
            printed = time.monotonic()
        yield job
        if job["state"] in ENDED:
            return
        time.sleep(0.5)


def give_up(client: Client, job: dict, patience_s: float) -> SystemExit:
    """Why the demo ends without a result, with what is known of the job."""
    reason = client.explain(job["id"])["reason"]
    return SystemExit(
        f"the job has not ended within {patience_s:.0f} s: {describe(job)}\n"
        f"  why: {reason['code']}: {reason['text']}\n"
        "  fix: correct that; or, where the machine is just slow, give more time with --patience"
    )


def train(client: Client, job_id: str, patience_s: float) -> dict:
    """Follows the job to its end, scaling it 1 -> 3 -> 2 on the way; returns the finished job."""
    deadline = time.monotonic() + patience_s
    steps = [(1, 3), (3, 2)]
    job: dict = {}
    fewest = 3
    for job in follow(client, job_id):
        if time.monotonic() > deadline and job["state"] not in ENDED:
            raise give_up(client, job, patience_s)
        if steps and active_workers(job) >= steps[0][0]:
            now, target = steps.pop(0)
            say(f"{now} {'worker trains' if now == 1 else 'workers train'}; scaling the running job to {target}")
            elasticdl("jobs", "scale", job_id, "--min_workers", str(target), "--max_workers", str(target))
        elif not steps and active_workers(job) == 2 and fewest > 2:
            fewest = 2
            say("2 workers train: the third gave back the rest of its task and left")
    if job["state"] != "SUCCEEDED":
        raise SystemExit(
            f"the job ended as {job['state']}: {job['reason']}\n{json.dumps(job.get('error'), indent=2)}"
        )
    if steps or fewest > 2:
        raise SystemExit(f"the job ended before its workers went 1 -> 3 -> 2: {describe(job)}")
    return job


def leftovers(directory: Path) -> list[str]:
    """Processes that still name the demo's directory in their command line, environment or working directory."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        if process.pid == os.getpid():
            continue
        try:
            traces = [*process.info["cmdline"], *process.environ().values(), process.cwd()]
        except (psutil.Error, TypeError):
            continue
        if any(str(directory) in trace for trace in traces):
            found.append(f"{process.pid} {' '.join(process.info['cmdline'])}")
    return found


def run(directory: Path, epochs: int, patience_s: float) -> int:
    """The demo inside ``directory``; returns the exit code."""
    os.environ["ELASTICDL_DATA_DIR"] = str(directory / "cluster")
    data = directory / "data"
    elasticdl("data", "generate", "digits", str(data))
    elasticdl("up", "--port", "0", "--slots", "3", "--owner-pid", str(os.getpid()), "--detach")
    try:
        job_id = elasticdl(
            *("train", "--detach", "--job_name", "digits", "--model_zoo", str(HERE / "zoo")),
            *("--model_def", "digits.forward", "--training_data", str(data / "train")),
            *("--validation_data", str(data / "validation"), "--num_epochs", str(epochs), "--minibatch_size", "32"),
            *("--num_ps_pods", "2", "--min_workers", "1", "--max_workers", "1", "--evaluation_steps", "2000"),
        ).splitlines()[-1]
        with Client() as client:
            job = train(client, job_id, patience_s)
            say(describe(job))
            client.download(job_id, directory / "artifacts")
        accuracy = job["status"]["metrics"]["accuracy"]
        say(f"accuracy on the held-out digits: {accuracy:.4f}")
        checked = json.loads(
            subprocess.run(
                [
                    sys.executable,
                    str(HERE / "check_export.py"),
                    str(directory / "artifacts"),
                    str(data / "validation"),
                ],
                stdout=subprocess.PIPE,
                text=True,
                timeout=300,
                check=True,
            ).stdout.splitlines()[-1]
        )
        for kind, value in checked.items():
            say(f"the {kind} export in a plain Keras process: {value:.4f}")
    finally:
        elasticdl("down")
    left = leftovers(directory)
    if left:
        raise SystemExit("processes were left behind:\n" + "\n".join(left))
    say("nothing is left running")
    wrong = [kind for kind, value in checked.items() if abs(value - accuracy) > 1e-6]
    if accuracy < WANTED_ACCURACY or wrong:
        print(f"the demo failed: accuracy {accuracy:.4f}, wanted {WANTED_ACCURACY}; exports that differ: {wrong}")
        return 1
    say(f"done: {accuracy:.2%} of the held-out digits are right, and so says the exported model")
    return 0


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=60, help="passes over the training data (default: 60)")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds that the job may take (default: 600)")
    parser.add_argument("--keep", action="store_true", help="keep the directory with data, logs and the export")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("stopped"))
    directory = Path(tempfile.mkdtemp(prefix="elasticdl-demo-"))
    directory.chmod(0o711)  # as root Postgres runs as nobody, whose data would else be kept outside and stay there
    code: int | None = None
    try:
        code = run(directory, arguments.epochs, arguments.patience)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    finally:
        if code in (0, 128 + signal.SIGINT) and not arguments.keep:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            say(f"kept, with the logs of all processes: {directory}")
    return code


if __name__ == "__main__":
    sys.exit(main())
