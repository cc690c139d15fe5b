"""`./dev demo` from cluster to checked export; only the making of the environment is left out."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.local_cluster import EXAMPLES, Cluster, user_environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.rotates(turns=2, place=0)  # beside the README, which brings up a cluster of its own, too
def test_the_demo(tmp_path: Path) -> None:
    shell = Cluster(tmp_path, user_environment(tmp_path) | {"TMPDIR": str(tmp_path)})
    done = shell.run(sys.executable, str(EXAMPLES / "digits" / "demo.py"), "--epochs", "40", timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "scaling the running job to 3" in done.stdout
    assert "the third gave back the rest of its task and left" in done.stdout
    assert "nothing is left running" in done.stdout
    assert "so says the exported model" in done.stdout
    assert list(tmp_path.glob("elasticdl-demo-*")) == []


@pytest.mark.slow
def test_a_demo_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    environment = user_environment(tmp_path) | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(EXAMPLES / "digits" / "demo.py")]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        while "$ elasticdl up" not in (line := demo.stdout.readline()):
            assert line, "it ended before it brought its cluster up"
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does
        _, said = demo.communicate(timeout=240)
    assert demo.returncode == 130
    assert "demo.py" not in said, "a traceback"
    assert list(tmp_path.glob("elasticdl-demo-*")) == []


def test_the_demo_gives_up_and_says_why(cluster: Cluster, digits: Path) -> None:
    spec = importlib.util.spec_from_file_location("demo", EXAMPLES / "digits" / "demo.py")
    assert spec is not None and spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    job_id = cluster.submit(
        *("--model_zoo", str(EXAMPLES / "digits" / "zoo"), "--model_def", "digits.forward", "--min_workers", "99"),
        *("--max_workers", "99", "--training_data", str(digits / "train")),
    )
    with cluster.client() as client:
        with pytest.raises(SystemExit, match=r"has not ended within 0 s: QUEUED(.|\n)*why: [a-z_]+: \S(.|\n)*fix: "):
            demo.train(client, job_id, 0.0)
        client.cancel(job_id)
