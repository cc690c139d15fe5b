"""How many workers fit on nodes, and amounts as Kubernetes writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from elasticdl_agent.kubernetes.access import KubernetesAccess
from elasticdl_agent.kubernetes.capacity import devices_of, slots_of
from elasticdl_agent.kubernetes.pod_states import JOB, ROLE
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.pods import parse_volumes, quantity, times

WORKER = {"cpu": 1.0, "memory": float(2 << 30)}


def node(
    name: str, *, cpu: str = "4", memory: str = "64Gi", ready: str = "True", gpus: str = "0", **spec: object
) -> dict:
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110", "nvidia.com/gpu": gpus}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name, "labels": {"pool": name}}, "spec": spec, "status": status}


def pod(where: str, cpu: str, *, role: str = "", memory: str = "0") -> dict:
    labels = {JOB: "a-1", ROLE: role} if role else {}
    requests = {"cpu": cpu, "memory": memory}
    return {
        "metadata": {"labels": labels},
        "spec": {"nodeName": where, "containers": [{"resources": {"requests": requests}}]},
    }


def slots(nodes: list, pods: list = (), quotas: list = (), selector: dict | None = None) -> int:
    return slots_of(nodes, pods, quotas, WORKER, selector or {})


def test_others_take_room_and_our_workers_do_not() -> None:
    others = [pod("a", "1500m"), pod("a", "100m", role="ps"), pod("a", "1", role="worker")]
    assert slots([node("a")], others) == 2
    assert slots([node("a"), node("b", cpu="2500m")], others) == 4


def test_what_a_pod_needs_at_its_start_only_is_not_added_to_the_rest() -> None:
    other = pod("a", "1")
    other["spec"]["initContainers"] = [{"resources": {"requests": {"cpu": cpu}}} for cpu in ("2", "1500m")]
    assert slots([node("a")], [other]) == 2
    other["spec"]["overhead"] = {"cpu": "1"}
    assert slots([node("a")], [other]) == 1


@pytest.mark.parametrize(
    "closed",
    [
        node("a", ready="Unknown"),
        node("a", unschedulable=True),
        node("a", taints=[{"key": "gpu", "effect": "NoSchedule"}]),
        node("a", memory="1Gi"),
    ],
)
def test_nodes_that_take_no_workers_count_nothing(closed: dict) -> None:
    assert slots([closed]) == 0


def test_the_selector_and_quotas_bound_it() -> None:
    nodes = [node("a"), node("b")]
    assert slots(nodes, selector={"pool": "b"}) == 4
    quota = {"status": {"hard": {"requests.cpu": "3"}, "used": {"requests.cpu": "1500m"}}}
    assert slots(nodes, [pod("a", "1", role="worker")], [quota]) == 2


def test_servers_of_jobs_that_wait_for_room_come_before_workers() -> None:
    """Of a node, and of a quota: workers that filled all of it would wait for their servers for ever."""
    ours = [pod("a", "1", role="worker")] * 4
    assert slots([node("a")], ours) == 4
    assert slots([node("a")], [*ours, pod("", "250m", role="ps")]) == 3
    assert slots([node("a"), node("b", cpu="4500m")], [*ours, pod("", "250m", role="ps")]) == 7
    for hard, used in (({"requests.cpu": "2"}, {"requests.cpu": "2"}), ({"pods": "2"}, {"pods": "2"})):
        quota = {"status": {"hard": hard, "used": used}}
        assert slots([node("a")], ours[:2], [quota]) == 2
        assert slots_of([node("a")], ours[:2], [quota], WORKER, {}, [pod("", "250m", role="ps")]) == 1


def test_gpus_of_open_nodes_are_devices() -> None:
    found = devices_of([node("a", gpus="2"), node("b", gpus="8", unschedulable=True)], {})
    assert [one.name for one in found] == ["gpu0", "gpu1"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("250m", 0.25),
        ("2Gi", 2.0**31),
        ("3k", 3000.0),
        (4, 4.0),
        ("1e3", 1000.0),
        ("2E", 2e18),
        ("1Pi", 2.0**50),
        ("500u", 5e-4),
        (".5", 0.5),
        ("5.", 5.0),
    ],
)
def test_quantities(text: object, value: float) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize(
    ("text", "multiple"), [("1234567Ki", "3703701Ki"), ("500m", "1500m"), ("0.7", "2.1"), ("2e9", "6000000000")]
)
def test_multiples_are_exact(text: str, multiple: str) -> None:
    assert times(text, 3) == multiple


@pytest.mark.parametrize("text", ["", "2GiB", "-1", "half", "1e", "1e3Ki", "K"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        quantity(text)


@pytest.mark.parametrize(
    "text", ["claim_name=a", "mount_path=/a", "claim_name=a,host_path=/b,mount_path=/c", "nfs=a,mount_path=/b", "x"]
)
def test_volumes_that_cannot_be_mounted_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_volumes(text)


def test_volumes_are_read_in_the_original_s_way() -> None:
    found = parse_volumes("claim_name=c1,mount_path=/path1;host_path=/h,mount_path=/path2,read_only=true")
    assert found[0] == {"claim_name": "c1", "mount_path": "/path1"} and found[1]["read_only"] == "true"


def config(tmp_path: Path, user: dict, **cluster: object) -> Path:
    file = tmp_path / "config"
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "ml"}}],
        "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1/", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    file.write_text(yaml.safe_dump(content))
    return file


def test_a_token_file_is_read_anew(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    access = KubernetesAccess.of_kubeconfig(config(tmp_path, {"tokenFile": "token"}))
    assert (access.server, access.namespace, access.token()) == ("http://127.0.0.1:1", "ml", "one")
    (tmp_path / "token").write_text("two")
    assert access.token() == "two"


@pytest.mark.parametrize("user", [{"exec": {"command": "a"}}, {"auth-provider": {"name": "a"}}, {"username": "a"}])
def test_plugins_are_refused_with_what_to_do(tmp_path: Path, user: dict) -> None:
    with pytest.raises(InvalidInputError, match="kubectl create token"):
        KubernetesAccess.of_kubeconfig(config(tmp_path, user))


def test_no_cluster_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="KUBECONFIG"):
        KubernetesAccess.in_cluster({}, tmp_path)
    with pytest.raises(InvalidInputError, match="no context 'x'"):
        KubernetesAccess.of_kubeconfig(config(tmp_path, {}), "x")
