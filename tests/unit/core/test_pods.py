"""Requests of jobs for their pods: read, bounded, and within an administrator's rules."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl_core.errors import InvalidInputError, SpecError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import PARAMETER_SERVERS
from elasticdl_core.job.ways import refuse_locally, refuse_pods
from elasticdl_core.pods import PodRequest, PodRules, RoleRequest, parse_resources

pytestmark = pytest.mark.unit
TRAINS = {"model_zoo": "/zoo", "model_def": "net.forward", "training_data": "/d"}


def spec(**fields: Any) -> JobSpec:
    return JobSpec.from_mapping({**TRAINS, **fields})


def refused(**fields: Any) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        spec(**fields)
    assert all(problem.fix for problem in caught.value.problems)
    return {problem.field: problem.message for problem in caught.value.problems}


def test_requests_are_read_as_the_original_writes_them() -> None:
    asked = parse_resources("cpu=0.5, memory=1024Mi,disk=2Gi,gpu=2")
    assert asked == RoleRequest("0.5", 1024, "2Gi", 200)
    assert parse_resources("") == RoleRequest()
    assert parse_resources("memory=1G").memory_mib == 954, "no less than what was asked for"
    assert parse_resources("ephemeral-storage=1Gi").disk == "1Gi"


@pytest.mark.parametrize(
    "text",
    [
        "cpu",
        "cpu=",
        "cpu=0",
        "cpu=0.1m",
        "cpu=2Gi",
        "cpu=1,cpu=2",
        "disk=1Gi,ephemeral-storage=1Gi",
        "memory=1k",
        "memory=-1Gi",
        "memory=1e999",
        "tpu=1",
        "cpu=1,,gpu=1",
        "gpu=0",
        "gpu=0.001",
        "memory=٣Gi",
    ],
)
def test_what_cannot_be_asked_for_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_resources(text)
    assert "worker_resource_request" in refused(worker_resource_request=text)


def test_memory_of_a_request_is_the_limit_that_there_is() -> None:
    found = spec(worker_resource_request="cpu=2,memory=4Gi", ps_resource_request="memory=1Gi")
    assert (found.worker_memory_mib, found.ps_memory_mib) == (4096, 1024)
    assert (found.worker_resource_request, found.ps_resource_request) == ("cpu=2", "")
    assert found.distribution_strategy == PARAMETER_SERVERS, "who speaks of servers wants them"
    assert JobSpec.from_mapping(found.to_mapping()) == found
    assert spec(worker_resource_request="memory=4Gi", worker_memory_mib=4096).worker_memory_mib == 4096
    assert "worker_resource_request" in refused(worker_resource_request="memory=4Gi", worker_memory_mib=1)
    assert spec(master_resource_request="cpu=1,memory=2Gi").memory_of("master") == 2048


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ps_resource_request", "gpu=1"),
        ("master_resource_request", "gpu=1"),
        ("image", "Registry/none"),
        ("image", "a b"),
        ("image_pull_policy", "Sometimes"),
        ("volume", "claim_name=a,claim_name=b,mount_path=/mnt/a"),
        ("volume", "host_path=/etc,mount_path=/mnt/etc"),
        ("volume", "claim_name=a,mount_path=/usr/lib"),
        ("volume", "claim_name=a,mount_path=/mnt/elasticdl/credentials"),
        ("volume", "claim_name=a,mount_path=/mnt/../usr"),
        ("volume", "claim_name=a,mount_path=/mnt/a,sub_path=../b"),
        ("volume", "claim_name=a,mount_path=/mnt/a,read_only=maybe"),
        ("volume", "claim_name=A,mount_path=/mnt/a"),
        ("volume", "mount_path=/mnt/a"),
        ("node_selector", {"pool": "a b"}),
        ("node_selector", {"": "a"}),
        ("node_selector", {"x/": "a"}),
    ],
)
def test_a_pod_that_cannot_be_is_refused(field: str, value: object) -> None:
    assert field in refused(**{field: value})


def test_labels_of_nodes_may_have_a_prefix() -> None:
    labels = {"node.kubernetes.io/instance-type": "m5.large", "gpu": ""}
    assert spec(node_selector=labels).pod_of("ps").node_selector == labels


def test_the_workers_alone_run_in_the_job_s_image() -> None:
    asked = spec(image="registry.example/own:1", volume="claim_name=d,mount_path=/mnt/d", ps_resource_request="cpu=1")
    assert asked.pod_of("worker").image == "registry.example/own:1"
    assert asked.pod_of("master") == PodRequest(volume="claim_name=d,mount_path=/mnt/d")
    assert asked.pod_of("ps") == PodRequest(cpu="1", volume="claim_name=d,mount_path=/mnt/d")


def test_rules_allow_nothing_that_they_do_not_name() -> None:
    everything = PodRequest("registry.example/own:1", "", "4", "", "claim_name=d,mount_path=/mnt/d", {"pool": "gpu"})
    rules = PodRules(data_dir="/mnt/d", most_cpu="2500m", most_memory="1Gi", node_selector={"pool": "train"})
    found = [problem.field for problem in rules.problems(everything, "ps", 1025)]
    assert found == ["image", "volume", "volume", "node_selector", "ps_resource_request", "ps_memory_mib"]
    allowed = PodRules(("registry.example/*",), ("d*",), "elasticdl-data", "/var/lib/elasticdl", "4", "2Gi")
    assert list(allowed.problems(everything, "worker", 2048)) == []
    assert list(PodRules().problems(PodRequest(cpu="64"), "worker", 1 << 20)) == []


def test_no_job_mounts_the_claim_of_the_cluster() -> None:
    rules = PodRules(claims=("*",), cluster_claim="elasticdl-data")
    asked = PodRequest(volume="claim_name=elasticdl-data,mount_path=/mnt/d")
    assert [problem.field for problem in rules.problems(asked, "worker", 0)] == ["volume"]


def test_what_only_a_pod_has_is_refused_elsewhere_by_name() -> None:
    asked = spec(
        image="a",
        image_pull_policy="Always",
        volume="claim_name=d,mount_path=/mnt/d",
        node_selector={"a": "b"},
        worker_resource_request="cpu=1,disk=1Gi,gpu=1,memory=1Gi",
        ps_resource_request="cpu=1",
        master_resource_request="memory=1Gi",
    )
    with pytest.raises(SpecError) as caught:
        refuse_pods(asked)
    names = [problem.field for problem in caught.value.problems]
    pods = ["image", "image_pull_policy", "volume", "node_selector"]
    assert names == [*pods, "worker_resource_request", "ps_resource_request"]
    refuse_pods(spec(worker_resource_request="gpu=1,memory=1Gi", master_resource_request="memory=1Gi"))
    with pytest.raises(SpecError, match="cpu is a pod's"):
        refuse_locally(spec(worker_resource_request="cpu=1"))
    refuse_locally(spec(worker_resource_request="gpu=1"))
