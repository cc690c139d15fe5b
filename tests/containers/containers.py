"""The cluster of docker-compose.yml, brought up from a checkout of its own and driven the way a user does it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elasticdl import Client
from elasticdl.client.retry import RetryPolicy
from tests.chaos.counting import CountingJob
from tests.containers.engine import DEADLINE_S, compose, run
from tests.e2e.local_cluster import ROOT, Cluster, user_environment

SERVICES = ("scheduler", "redis", "api", "postgres", "node")
BUILD_S, UP_S = 2400.0, 400.0
CHECKOUT = (
    *(
        "Dockerfile",
        ".dockerignore",
        "docker-compose.yml",
        "pyproject.toml",
        "constraints.txt",
        "README.md",
        "LICENSE",
    ),
    *("sdk", "services", "shared", "examples", "deploy"),
)


@dataclass
class Containers(Cluster):
    """A cluster in containers.

    Attributes:
        checkout: holds the file, the secrets, and what images are built from.
    """

    checkout: Path = ROOT

    def seen(self, path: Path) -> str:
        return f"/mnt/data/{path.relative_to(self.directory)}"

    def job_dir(self, job_id: str) -> Path:
        """A copy of the folder as it is now."""
        copy = self.checkout / "copies" / job_id
        shutil.rmtree(copy, ignore_errors=True)
        copy.parent.mkdir(exist_ok=True)
        self.compose("cp", f"node:/var/lib/elasticdl/jobs/{job_id}", str(copy))
        return copy

    def compose(self, *arguments: str, timeout: float = DEADLINE_S) -> str:
        """Runs Compose in the checkout; returns what it printed."""
        done = run(*compose(), *arguments, cwd=self.checkout, env=self.environment, timeout=timeout)
        if done.returncode:
            logs = run(*compose(), "logs", "--tail", "20", cwd=self.checkout, env=self.environment).stdout
            raise AssertionError(
                f"compose {' '.join(arguments)} failed\n{done.stderr[-4000:]}\n--- logs\n{logs[-9000:]}"
            )
        return done.stdout

    def up(self) -> None:
        """Brings up what is not, and waits until all of it is healthy."""
        self.compose("up", "--no-build", "--wait", timeout=UP_S)

    def client(self) -> Client:
        api_url, token = self.environment["ELASTICDL_API_URL"], self.environment["ELASTICDL_TOKEN"]
        return Client(api_url=api_url, token=token, retry=RetryPolicy(attempts=20))


@contextlib.contextmanager
def in_containers(folder: Path) -> Iterator[Containers]:
    """A cluster whose images are built and that is not up yet; nothing of it stays but the images."""
    checkout, data = folder / "checkout", folder / "data"
    for each in (checkout, data):
        each.mkdir()
        each.chmod(0o755)  # users in containers have other numbers
    for name in CHECKOUT:
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, checkout / name)
        else:
            shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("secrets", "__pycache__"))
    subprocess.run(["sh", "deploy/docker/make-secrets.sh"], cwd=checkout, check=True, timeout=60, capture_output=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    token = (checkout / "deploy" / "docker" / "secrets" / "admin_token").read_text().strip()
    environment = {
        **user_environment(folder),
        "COMPOSE_PROJECT_NAME": f"elasticdl-test-{uuid.uuid4().hex[:8]}",
        "DOCKER_BUILDKIT": "1",
        "ELASTICDL_DATA": str(data),
        "ELASTICDL_PORT": port,
        "ELASTICDL_API_URL": f"http://127.0.0.1:{port}",
        "ELASTICDL_TOKEN": token,
    }
    cluster = Containers(data, environment, checkout)
    try:
        cluster.compose("build", timeout=BUILD_S)
        yield cluster
    finally:
        everything = ("--profile", "observability", "down", "--volumes", "--timeout", "5")
        run(*compose(), *everything, cwd=checkout, env=environment)


@dataclass
class JobInContainers(CountingJob):
    """A counting job that is watched through the API."""

    def applied(self) -> int:
        with self.cluster.client() as client:
            status = client.get(self.id).get("status") or {}
        return int(status.get("progress", {}).get("records_done", 0))
