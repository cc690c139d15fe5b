"""docker-compose.yml in a Docker engine: who its services are there, what they may take, and what code of users sees.

The services run as the file says, but for their images: those cannot be had without a registry, so that all have a
small root file system of this machine's own programs, and each says what it finds of itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.containers.engine import DEADLINE_S, compose, lacking, run

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OURS = ("api", "scheduler", "node")
PROGRAMS = ("sh", "cat", "setpriv", "id", "touch", "ls")
USERS = "".join(
    f"{name}:x:{numbers}::/:/bin/sh\n"
    for name, numbers in {
        "root": "0:0",
        "postgres": "70:70",
        "redis": "999:1000",
        "nobody": "65534:65534",
        "grafana": "472:0",
        "elasticdl": "10001:10001",
    }.items()
)
STRANGER = "setpriv --reuid=200000 --regid=200000 --clear-groups --inh-caps=-all --ambient-caps=-all --no-new-privs"
PROBE = f"""
cat /proc/self/status
for secret in /run/secrets/*; do cat $secret >/dev/null 2>&1 && echo "reads: $secret"; done
touch /written 2>/dev/null && echo "writes: /written"
cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null | (read m; echo "memory: $m")
cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null | (read p; echo "pids: $p")
if {STRANGER} id -u >/dev/null 2>&1; then
  echo "stranger: $({STRANGER} id -u)"
  {STRANGER} cat /etc/passwd >/dev/null 2>&1 && echo "sees: /etc/passwd"
  for file in /run/secrets/* /proc/$$/environ; do {STRANGER} cat $file >/dev/null 2>&1 && echo "leaks: $file"; done
fi
exit 0
"""


def _written(folder: Path, content: dict[str, Any]) -> Path:
    """The file where Compose shall find it; its first version knew no name of a project."""
    if compose() == ("docker-compose",):
        content = {key: value for key, value in content.items() if key != "name"}
    file = folder / "docker-compose.yml"
    file.write_text(yaml.safe_dump(content))
    return file


def _file_system() -> bytes:
    """A root file system with a shell and a few programs, as a tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in PROGRAMS:
            program = shutil.which(name)
            assert program, name
            tar.add(Path(program).resolve(), f"bin/{name}")
            for word in run("ldd", program).stdout.split():
                if word.startswith("/") and word[1:] not in tar.getnames():
                    tar.add(Path(word).resolve(), word[1:])
        tar.add(ROOT / "deploy" / "docker" / "entrypoint.sh", "opt/elasticdl/entrypoint.sh")
        passwd = tarfile.TarInfo("etc/passwd")
        passwd.size = len(USERS)
        tar.addfile(passwd, io.BytesIO(USERS.encode()))
    return buffer.getvalue()


@dataclass(frozen=True)
class Service:
    """What a service said of itself, and what the engine says of it.

    Attributes:
        said: lines by their first word; several of one by their order.
        host: its limits.
    """

    said: dict[str, list[str]]
    host: dict[str, Any]

    def capabilities(self) -> list[int]:
        return [int(self.said[name][0], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]


def _as_probe(name: str, service: dict[str, Any], image: str) -> dict[str, Any]:
    left = {"build", "depends_on", "healthcheck", "ports", "profiles", "restart", "stop_grace_period"}
    kept = {key: value for key, value in service.items() if key not in left}
    entry = ["/bin/sh", "/opt/elasticdl/entrypoint.sh"] if name in OURS else ["/bin/sh"]
    return {
        **kept,
        "image": image,
        "entrypoint": entry,
        "command": [*(["sh"] if name in OURS else []), "-c", PROBE.replace("$", "$$")],
    }


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Service]]:
    if lacking():
        pytest.skip(lacking())
    if not shutil.which("setpriv"):
        pytest.skip("the probe needs setpriv")
    folder = tmp_path_factory.mktemp("compose")
    (folder / "examples").mkdir()
    (folder / "deploy").mkdir()
    shutil.copytree(ROOT / "deploy" / "docker", folder / "deploy" / "docker", ignore=lambda *_: ["secrets"])
    assert run("sh", str(folder / "deploy" / "docker" / "make-secrets.sh")).returncode == 0
    (folder / "deploy" / "docker" / "secrets" / "prometheus_token").write_text("made by the cluster")
    name = f"elasticdl-test-{uuid.uuid4().hex[:8]}"
    probes = {key: _as_probe(key, value, name) for key, value in COMPOSE["services"].items()}
    _written(folder, {**COMPOSE, "services": probes})
    command = (*compose(), "--project-name", name)
    with contextlib.ExitStack() as stack:
        imported = subprocess.run(
            ["docker", "import", "--change", "USER 10001:10001", "-", name],
            input=_file_system(),
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert imported.returncode == 0, imported.stderr
        stack.callback(run, "docker", "image", "rm", "--force", name)
        stack.callback(run, *command, "down", "--volumes", "--timeout", "1", cwd=folder)
        up = run(*command, "up", "--no-build", "--detach", cwd=folder)
        assert up.returncode == 0, up.stderr
        yield {key: _found(command, folder, key) for key in probes}


def _found(command: tuple[str, ...], folder: Path, service: str) -> Service:
    container = run(*command, "ps", "--all", "--quiet", service, cwd=folder).stdout.strip()
    if not container:
        container = run(*command, "ps", "--quiet", service, cwd=folder).stdout.strip()
    code = run("docker", "wait", container)
    logs = run("docker", "logs", container)
    assert code.stdout.strip() == "0", logs.stderr
    said: dict[str, list[str]] = {}
    for line in logs.stdout.splitlines():
        word, _, rest = line.partition(":")
        said.setdefault(word, []).append(rest.strip())
    (inspected,) = json.loads(run("docker", "inspect", container).stdout)
    return Service(said, inspected["HostConfig"])


def test_compose_takes_the_file(tmp_path: Path) -> None:
    if not compose():
        pytest.skip("there is no Docker Compose")
    _written(tmp_path, COMPOSE)
    told = run(*compose(), "config", "--quiet", cwd=tmp_path)
    assert told.returncode == 0, told.stderr


def test_limits_are_in_force_in_every_container(services: dict[str, Service]) -> None:
    for name, service in services.items():
        wanted = COMPOSE["services"][name]
        host = service.host
        assert host["Memory"] == host["MemorySwap"] > 0, name
        assert service.said["memory"] == [str(host["Memory"])], name
        assert service.said["pids"] == [str(wanted["pids_limit"])], name
        assert host["NanoCpus"] > 0, name
        assert {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]} == {"core": 0}, name


def test_no_service_is_root_or_has_capabilities_but_the_nodes_for_users_of_jobs(services: dict[str, Service]) -> None:
    for name, service in services.items():
        assert "0" not in service.said["Uid"][0].split(), name
        assert service.said["NoNewPrivs"] == ["1"], name
        if name != "node":
            assert service.capabilities() == [0] * 5, name
        if name != "postgres":
            assert "writes" not in service.said, name
    kept = {
        0: "CHOWN",
        1: "DAC_OVERRIDE",
        3: "FOWNER",
        4: "FSETID",
        5: "KILL",
        6: "SETGID",
        7: "SETUID",
        8: "SETPCAP",
    }
    assert set(kept.values()) == set(COMPOSE["services"]["node"]["cap_add"])
    assert set(services["node"].capabilities()) == {sum(1 << number for number in kept)}
    assert services["redis"].said["Uid"][0].split() == ["999"] * 4


def test_who_a_job_is_in_the_node_reads_no_secret_there(services: dict[str, Service]) -> None:
    node = services["node"]
    assert node.said["Uid"][0].split() == ["10001"] * 4
    assert node.said["stranger"] == ["200000"]
    assert node.said["sees"] == ["/etc/passwd"] and "leaks" not in node.said
    for name in ("postgres", "redis", "api", "scheduler", "prometheus", "grafana"):
        wanted = {f"/run/secrets/{one}" for one in COMPOSE["services"][name]["secrets"]}
        assert set(services[name].said["reads"]) == wanted, name
