"""docker-compose.yml and the Dockerfile: valid, closed to the outside, and what they run can be run."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = Path(__file__).with_name("compose_spec") / "compose-spec.json"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OURS = ("api", "scheduler", "node")
OBSERVERS = ("prometheus", "grafana")
DOCKERFILE = (ROOT / "Dockerfile").read_text().splitlines()
REQUIREMENTS = ROOT / "deploy" / "docker" / "requirements.py"


def test_the_file_keeps_the_published_schema() -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    errors = jsonschema.Draft7Validator(schema).iter_errors(COMPOSE)
    assert [f"{error.json_path}: {error.message}" for error in errors] == []


def test_the_schema_refuses_a_mistake() -> None:
    schema = json.loads(SCHEMA.read_text())
    broken = {**COMPOSE, "services": {**COMPOSE["services"], "api": {**COMPOSE["services"]["api"], "port": 1}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate(broken)


def test_every_service_has_a_health_check_and_comes_back() -> None:
    assert set(COMPOSE["services"]) == {"postgres", "redis", *OURS, *OBSERVERS}
    for name, service in COMPOSE["services"].items():
        assert service["healthcheck"]["test"], name
        assert service["restart"] == "unless-stopped", name


def test_the_api_alone_is_published_and_grafana_if_it_is_asked_for_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in COMPOSE["services"].items() if "ports" in service}
    assert list(published) == ["api", "grafana"]
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert COMPOSE["networks"]["store"] == {"internal": True}
    profiles = {name: service["profiles"] for name, service in COMPOSE["services"].items() if "profiles" in service}
    assert profiles == {name: ["observability"] for name in OBSERVERS}


def test_what_observes_is_hardened_and_no_job_can_ask_it() -> None:
    """Prometheus tells whoever asks of the jobs of all namespaces."""
    services = COMPOSE["services"]
    assert all(services[name]["read_only"] is True for name in OBSERVERS)
    assert services["prometheus"]["networks"] == ["watch"] and COMPOSE["networks"]["watch"] == {"internal": True}
    assert not set(services["node"]["networks"]) & {
        *services["prometheus"]["networks"],
        *services["grafana"]["networks"],
    }
    assert set(services["grafana"]["networks"]) & set(services["prometheus"]["networks"])


def test_prometheus_in_a_container_collects_as_elsewhere_but_for_the_address_and_the_token() -> None:
    folder = ROOT / "deploy" / "observability" / "prometheus"
    here, there = (yaml.safe_load((folder / name).read_text()) for name in ("prometheus.yml", "containers.yml"))
    (mine,), (scrape,) = here.pop("scrape_configs"), there.pop("scrape_configs")
    assert here == there
    service = COMPOSE["services"]["prometheus"]
    assert scrape.pop("authorization")["credentials_file"] == f"/run/secrets/{service['secrets'][0]}"
    (target,) = scrape.pop("static_configs")[0]["targets"]
    host, _, port = target.partition(":")
    assert host in COMPOSE["services"]["api"]["environment"]["ELASTICDL_API_ALLOWED_HOSTS"].split(",")
    assert port == COMPOSE["services"]["api"]["environment"]["ELASTICDL_API_PORT"]
    assert scrape == {key: value for key, value in mine.items() if key in scrape}
    mounted = {one.split(":")[1]: one.split(":")[0] for one in service["volumes"]}
    (config,) = [one.partition("=")[2] for one in service["command"] if one.startswith("--config.file=")]
    assert (ROOT / mounted[str(Path(config).parent)] / Path(config).name).is_file()
    for source in (one.split(":")[0] for one in COMPOSE["services"]["grafana"]["volumes"]):
        assert not source.startswith("./") or (ROOT / source).is_dir(), source


def test_secrets_come_by_file_and_are_declared() -> None:
    for name, service in COMPOSE["services"].items():
        for variable, value in service.get("environment", {}).items():
            if any(word in variable for word in ("PASSWORD", "SECRET", "TOKEN", "DATABASE_URL", "REDIS_URL")):
                assert variable.endswith("_FILE"), (name, variable)
                assert Path(value).name in sources(service).values(), (name, variable)
        assert set(sources(service)) <= set(COMPOSE["secrets"])


def sources(service: dict[str, Any]) -> dict[str, str]:
    """The secrets of a service, and the name of each in its container."""
    given = service.get("secrets", [])
    return {one: one for one in given if isinstance(one, str)} | {
        one["source"]: one["target"] for one in given if isinstance(one, dict)
    }


def test_every_service_has_limits() -> None:
    for name, service in COMPOSE["services"].items():
        for limit in ("mem_limit", "memswap_limit", "cpus", "pids_limit"):
            assert service[limit], (name, limit)
        assert service["ulimits"] == {"core": 0}, name


def test_no_service_has_capabilities_that_it_was_not_given_or_gets_any() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert {"privileged", "pid", "ipc", "userns_mode", "devices", "network_mode"}.isdisjoint(service), name


def test_nothing_begins_as_root_but_the_nodes_entry_point() -> None:
    """Ours are somebody else by their images (see below)."""
    asked = {name: service.get("user", "") for name, service in COMPOSE["services"].items()}
    assert asked == {"postgres": "postgres", "redis": "redis", "api": "", "scheduler": "", "node": "0:0"} | {
        "prometheus": "nobody",
        "grafana": "grafana",
    }


def test_redis_and_what_reads_its_password_are_never_root() -> None:
    redis = COMPOSE["services"]["redis"]
    assert redis["user"] == "redis"
    assert redis["cap_drop"] == ["ALL"] and redis["read_only"] is True


def test_the_node_alone_may_change_users_and_reads_secrets_of_its_own() -> None:
    given = {name: service.get("cap_add", []) for name, service in COMPOSE["services"].items()}
    assert {name for name, capabilities in given.items() if capabilities} == {"node"}
    assert {"SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN", "DAC_READ_SEARCH"}.isdisjoint(given["node"])
    node = COMPOSE["services"]["node"]
    assert node["user"] == "0:0" and node["environment"]["ELASTICDL_ISOLATION"] == "uid"
    others = {
        secret for name, service in COMPOSE["services"].items() if name != "node" for secret in sources(service)
    }
    assert not others & set(sources(node))


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="root alone becomes somebody else")
def test_as_root_the_entry_point_becomes_the_agents_user_with_what_it_needs_and_no_more() -> None:
    entry = ["sh", str(ROOT / "deploy" / "docker" / "entrypoint.sh"), "cat", "/proc/self/status"]
    done = subprocess.run(entry, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=30)
    told = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert told["Uid"].split() == told["Gid"].split() == ["10001"] * 4
    numbers = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7}
    numbers["SETPCAP"] = 8
    kept = sum(1 << numbers[name] for name in COMPOSE["services"]["node"]["cap_add"])
    assert all(int(told[name], 16) == kept for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb"))
    assert told["NoNewPrivs"] == "1"


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="root alone becomes somebody else")
@pytest.mark.parametrize("lacking", ["", "fsetid"])
def test_with_what_the_entry_point_leaves_workers_of_a_namespace_may_use_the_sockets_of_their_job(
    tmp_path: Path, lacking: str
) -> None:
    """Sockets belong to the group of their folder; without a capability, the kernel takes that from the folder."""
    program = (
        "import sys, pathlib\n"
        "from elasticdl_agent.directories import AgentDirectories, JobUser\n"
        "from elasticdl_core.ports.launcher import ProcessId, Role\n"
        "places = AgentDirectories(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))\n"
        "places.prepare(ProcessId('a-1', Role.WORKER, 0, 0), JobUser(200000, 200000), confined=True)\n"
        "print(places.shares_sockets(200000), oct(places.job_run_dir('a-1').stat().st_mode & 0o7777))\n"
    )
    for name in ("data", "run"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, 10001, 10001)
    entry = ["sh", str(ROOT / "deploy" / "docker" / "entrypoint.sh")]
    less = ["setpriv", f"--ambient-caps=-{lacking}", f"--inh-caps=-{lacking}"] if lacking else []
    entry += [*less, sys.executable, "-P", "-c", program]
    done = subprocess.run(
        [*entry, str(tmp_path / "data"), str(tmp_path / "run")], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == (f"{not lacking} 0o{'' if lacking else '2'}710", "")


def test_volumes_are_declared() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or source.startswith(("${", "./")), volume


@pytest.mark.parametrize("name", OURS)
def test_our_services_are_hardened(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["build"]["context"] == "." and "dockerfile" not in service["build"]


@pytest.mark.parametrize("name", OURS)
def test_the_command_of_a_service_can_be_imported(name: str) -> None:
    service = COMPOSE["services"][name]
    *interpreter, module = service["command"]
    assert interpreter == ["python", "-P", "-m"]
    assert importlib.util.find_spec(f"{module}.__main__") is not None


def test_images_of_one_name_are_built_alike() -> None:
    """The api and the scheduler are one image; the node's has all that jobs run."""
    services = COMPOSE["services"]
    assert services["api"]["image"] == services["scheduler"]["image"] != services["node"]["image"]
    assert services["api"]["build"] == services["scheduler"]["build"]
    bases = {services[name]["build"]["args"]["PYTHON_IMAGE"] for name in OURS}
    assert bases == {"${PYTHON_IMAGE:-docker.io/library/python:3.12-slim}"}


def test_an_image_needs_what_its_extras_do_and_no_project() -> None:
    asked = COMPOSE["services"]["api"]["build"]["args"]["EXTRAS"]
    needed = required(asked)
    assert needed.returncode == 0 and needed.stderr == ""
    lines = needed.stdout.splitlines()
    assert {"fastapi>=0.115", "numpy>=1.26"} <= set(lines) and not any("tensorflow" in line for line in lines)
    default = next(line for line in DOCKERFILE if line.startswith("ARG EXTRAS=")).removeprefix("ARG EXTRAS=")
    assert COMPOSE["services"]["node"]["build"]["args"]["EXTRAS"] == f"${{ELASTICDL_NODE_EXTRAS:-{default}}}"
    assert {"tensorflow>=2.21,<2.22", "numba>=0.61"} <= set(required(default).stdout.splitlines())


def test_an_image_with_extras_that_there_are_not_says_which_there_are() -> None:
    done = required("api,schedular")
    assert done.returncode == 64 and done.stdout == ""
    assert "no extras schedular" in done.stderr and "fix: --build-arg EXTRAS=" in done.stderr


def required(extras: str) -> subprocess.CompletedProcess[str]:
    """What the build asks pip for."""
    command = [sys.executable, str(REQUIREMENTS), extras]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("name", OURS)
def test_a_service_without_settings_says_which_one_it_needs(name: str, tmp_path: Path) -> None:
    module = COMPOSE["services"][name]["command"][-1]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ELASTICDL_")}
    done = subprocess.run(
        [sys.executable, "-P", "-m", module],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 64, done.stderr
    assert "fix: set ELASTICDL_" in done.stderr


def test_images_run_as_somebody_without_rights_and_keep_no_settings_of_pip() -> None:
    final = DOCKERFILE[max(index for index, line in enumerate(DOCKERFILE) if line.startswith("FROM")) :]
    assert "USER 10001:10001" in final
    assert not any("secret" in line or "PIP_CONFIG_FILE" in line for line in final)
    assert {"useradd", "groupadd", "apt-get"}.isdisjoint(" ".join(final).split()), "another base may not have them"


def test_all_that_is_copied_into_a_build_gets_there() -> None:
    copied = {
        word
        for line in DOCKERFILE
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    }
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(source == kept[1:] or source.startswith(f"{kept[1:]}/") for kept in ignored if kept[:1] == "!"), (
            source
        )


def test_secrets_are_made_once(tmp_path: Path) -> None:
    script = tmp_path / "make-secrets.sh"
    script.write_text((ROOT / "deploy" / "docker" / "make-secrets.sh").read_text())
    for _ in range(2):
        subprocess.run(["sh", str(script)], check=True, capture_output=True, timeout=30)
        made = {path.name: path.read_text().strip() for path in (tmp_path / "secrets").iterdir()}
    assert set(made) == set(COMPOSE["secrets"]) - {"prometheus_token", "pip"}
    copies = {"node_cluster_secret": "cluster_secret", "node_node_token": "node_token"}
    assert {copy: made[copy] for copy in copies} == {copy: made[name] for copy, name in copies.items()}
    assert len(set(made.values())) == len(made) - len(copies)
    closed = {path.name for path in (tmp_path / "secrets").iterdir() if stat.S_IMODE(path.stat().st_mode) == 0o600}
    assert closed == set(sources(COMPOSE["services"]["node"]))
    assert made["postgres_password"] in made["database_url"]
    assert made["redis_password"] in made["redis_url"]
    assert all(len(made[name]) == 64 for name in ("admin_token", "cluster_secret", "node_token"))
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    subprocess.run(["sh", str(script)], check=True, capture_output=True, timeout=30)
    assert {path.name: path.read_text().strip() for path in (tmp_path / "secrets").iterdir()} == made


def test_the_entry_point_takes_secrets_from_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('it\'s $(a) "secret"\n')
    entry = ["sh", str(ROOT / "deploy" / "docker" / "entrypoint.sh"), "printenv"]
    environment = {"PATH": os.environ["PATH"], "ELASTICDL_NODE_TOKEN_FILE": str(secret)}
    done = subprocess.run(
        [*entry, "ELASTICDL_NODE_TOKEN"], env=environment, capture_output=True, text=True, timeout=30
    )
    assert done.stdout == 'it\'s $(a) "secret"\n'
    gone = {**environment, "ELASTICDL_NODE_TOKEN_FILE": str(tmp_path / "gone")}
    done = subprocess.run(entry, env=gone, capture_output=True, text=True, timeout=30)
    assert done.returncode == 64 and "fix: run deploy/docker/make-secrets.sh" in done.stderr
