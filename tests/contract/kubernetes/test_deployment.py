"""The manifests of ``deploy/k8s``: valid for all versions that are supported, and enough for what the agent does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.kubernetes.manifests import PodTemplate
from elasticdl_agent.kubernetes.settings import KubernetesSettings
from elasticdl_core.pods import PodRequest
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, ProcessState, Role
from tests.contract.launcher.conftest import directories, pod_cluster, pod_launcher, pod_settings, until  # noqa: F401 - a fixture
from tests.fakes.kubernetes.server import Rule

pytestmark = pytest.mark.contract

K8S = Path(__file__).parents[3] / "deploy" / "k8s"
VOLUME = "claim_name=c,mount_path=/mnt/data,read_only=true,sub_path=a"
VERSIONS = ("1.31", "1.37")
"""The oldest and the newest that are supported: each more costs seconds."""
FILES = sorted(path for path in K8S.rglob("*.yaml") if path.name != "kustomization.yaml")


def documents(file: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(file.read_text()) if one]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_manifests_are_valid(file: Path) -> None:
    for version in VERSIONS:
        for found in documents(file):
            kubernetes_validate.validate(found, version, strict=True)


def test_each_file_is_in_a_kustomization() -> None:
    named = set()
    for kustomization in K8S.rglob("kustomization.yaml"):
        named |= {kustomization.parent / one for one in yaml.safe_load(kustomization.read_text())["resources"]}
    assert set(FILES) <= named
    assert all(path.exists() for path in named)


def test_pods_keep_to_the_restricted_standard() -> None:
    for file in FILES:
        for found in documents(file):
            if found["kind"] not in ("Deployment", "StatefulSet"):
                continue
            spec = found["spec"]["template"]["spec"]
            assert spec["securityContext"]["runAsNonRoot"] and spec["enableServiceLinks"] is False, file
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in spec["containers"]:
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
                assert container["securityContext"]["allowPrivilegeEscalation"] is False
                assert "memory" in container["resources"]["limits"] and "cpu" in container["resources"]["requests"]


def test_what_the_launcher_makes_is_valid(tmp_path: Path) -> None:
    settings = KubernetesSettings(
        image="registry.example/elasticdl:1",
        claim="data",
        volume=f"{VOLUME};host_path=/srv,mount_path=/srv",
        node_selector="pool=train,disk=ssd",
        priority_class="elasticdl-jobs",
        data_dir=tmp_path,
        cluster_secret="s" * 16,
        node_token="t" * 16,
        api_url="https://api",
        redis_url="redis://redis",
    )
    template, folders = PodTemplate(settings, "elasticdl"), AgentDirectories(tmp_path, tmp_path)
    made = [template.anchor("digits-1"), template.budget("digits-1", "u", 2)]
    for role, share in ((Role.MASTER, 0), (Role.PS, 0), (Role.WORKER, 200)):
        spec = ProcessSpec(ProcessId("digits-1", role, 0, 1), {}, 512, slots=share // 100, device_share=share)
        made.append(template.pod(spec, {"A": "b"}, folders, "u", gated=True))
        made.append(template.service(spec.id, "u"))
        made.append(template.secret(spec, {"A": "b"}, b"pem", "u"))
    for version in VERSIONS:
        for found in made:
            kubernetes_validate.validate(found, version, strict=True)
    worker = made[-3]["spec"]["containers"][0]
    assert worker["resources"]["limits"] == {"memory": "512Mi", "nvidia.com/gpu": "2"}
    assert worker["resources"]["requests"] == {"cpu": "2", "memory": "512Mi"}
    assert "b" not in [variable.get("value") for variable in worker["env"]], "variables are in the Secret"
    job = next(mount for mount in worker["volumeMounts"] if mount["mountPath"] == str(tmp_path / "jobs" / "digits-1"))
    assert job["readOnly"] and job["subPath"] == "jobs/digits-1"


def test_what_a_job_asks_of_its_pods_is_in_them(tmp_path: Path) -> None:
    settings = pod_settings(AgentDirectories(tmp_path, tmp_path), node_selector="pool=train", volume=VOLUME)
    asked = PodRequest(
        "registry.example/own:1",
        "Always",
        "2500m",
        "10Gi",
        "claim_name=own,mount_path=/mnt/own,sub_path=a,read_only=true",
        {"zone": "b"},
    )
    spec = ProcessSpec(ProcessId("digits-1", Role.WORKER, 0, 1), {}, 512, slots=1, pod=asked)
    pod = PodTemplate(settings, "elasticdl").pod(spec, {}, AgentDirectories(tmp_path, tmp_path), "u", gated=False)
    for version in VERSIONS:
        kubernetes_validate.validate(pod, version, strict=True)
    worker = pod["spec"]["containers"][0]
    assert (worker["image"], worker["imagePullPolicy"]) == ("registry.example/own:1", "Always")
    asked_for = {"cpu": "2500m", "memory": "512Mi", "ephemeral-storage": "10Gi"}
    assert worker["resources"] == {"requests": asked_for, "limits": asked_for}
    assert pod["spec"]["nodeSelector"] == {"zone": "b", "pool": "train"}
    own = {"name": "volume-1", "mountPath": "/mnt/own", "subPath": "a", "readOnly": True}
    assert own in worker["volumeMounts"]
    assert {"name": "volume-1", "persistentVolumeClaim": {"claimName": "own"}} in pod["spec"]["volumes"]


async def test_the_agent_s_rights_are_enough(directories: AgentDirectories) -> None:  # noqa: F811
    """A job's processes are launched, read, replaced and removed with the rules of ``rbac.yaml`` and no others."""
    rules = []
    for found in documents(K8S / "base" / "rbac.yaml"):
        where = ("default",) if found["kind"] == "Role" else ("*",)
        rules += [Rule(tuple(one["verbs"]), tuple(one["resources"]), where) for one in found.get("rules", [])]
    with pod_cluster(directories) as cluster:
        token = cluster.user("elasticdl-agent", *rules)
        async with pod_launcher(cluster, directories, token) as launcher:
            for role in Role:
                await launcher.launch(ProcessSpec(ProcessId("a-1", role, 0, 1), slots=int(role is Role.WORKER)))
            for role in Role:
                await until(launcher, ProcessId("a-1", role, 0, 1), ProcessState.RUNNING)
            assert (await launcher.capacity()).slots == 2
            newer = ProcessId("a-1", Role.PS, 0, 2)
            await launcher.launch(ProcessSpec(newer))
            await until(launcher, newer, ProcessState.RUNNING)
            log = launcher.logs("a-1", Role.PS, 0, tail=None, follow=False)
            assert b"ready" in b"".join([piece async for piece in log])
            await launcher.terminate_job("a-1", grace_s=10.0)
            await until(launcher, newer, ProcessState.EXITED)
            async with asyncio.timeout(90):
                while launcher.leaving("a-1"):  # noqa: ASYNC110 - the port tells nobody of it
                    await asyncio.sleep(0.02)  # a poll of the loop beside
            assert not cluster.do(lambda: [key for key in cluster.store.objects if "a-1" in key[2]])
            refused = cluster.do(lambda: cluster.api.refused)
    assert refused == []
