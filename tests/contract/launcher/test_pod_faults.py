"""The Kubernetes launcher while requests fail: nothing is launched twice, and nothing is left."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.kubernetes.agent import KubernetesAgent
from elasticdl_agent.kubernetes.launcher import KubernetesLauncher
from elasticdl_agent.kubernetes.manifests import MANAGED
from elasticdl_agent.kubernetes.pod_states import JOB as LABEL
from elasticdl_agent.kubernetes.pod_states import ROLE
from elasticdl_core.errors import ConflictError, InvalidInputError, PermissionDeniedError, UnavailableError
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, ProcessState, Role
from elasticdl_runtime.lifecycle import within
from elasticdl_runtime.rpc.credentials import RpcCredentials
from tests.contract.launcher.conftest import PodHarness, pod_cluster, pod_launcher, pod_settings, printed, until
from tests.fakes.kubernetes.cluster import FakeKubernetes
from tests.fakes.kubernetes.objects import KINDS
from tests.fakes.kubernetes.server import Fault, Rule

pytestmark = pytest.mark.contract

JOB = "digits-1"
FAULTS = {
    "every create answered with 500 twice": Fault("create", code=500, times=2),
    "a pod made, and the answer lost": Fault("create", "pods", code=0, after=True, times=3),
    "too many requests": Fault(code=429, times=12),
    "no lists": Fault("list", code=503, times=3),
    "no watches": Fault("watch", code=500, times=4),
    "lists cut": Fault("list", "pods", code=0, times=2),
    "Secrets are not taken": Fault("patch", "secrets", code=503, times=3),
    "Secrets stay": Fault("delete", "secrets", code=503, times=4),
    "anchors are not taken": Fault("patch", "configmaps", code=504, times=3),
    "an anchor stays": Fault("delete", "configmaps", code=0, times=2),
    "Services are not taken": Fault("patch", "services", code=500, times=2),
    "budgets are not taken": Fault("patch", "poddisruptionbudgets", code=500, times=2),
    "pods are not deleted": Fault("delete", "pods", code=503, times=4),
    "a pod deleted, and the answer lost": Fault("delete", "pods", code=0, after=True, times=4),
    "gates and finalizers stay": Fault("patch", "pods", code=500, times=4),
    "finalizers gone, and the answer lost": Fault("patch", "pods", code=0, after=True, times=4),
    "conflicts": Fault("patch", "configmaps", code=500, after=True, times=2),
    "no nodes": Fault("list", "nodes", code=500, times=2),
    "no quotas": Fault("list", "resourcequotas", code=500, times=2),
    "all of it fails for a while": Fault(code=0, times=25),
}
IN_THE_GATE = {"a pod made, and the answer lost", "all of it fails for a while"}
EACH = [name if name in IN_THE_GATE else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]


def process(role: Role, index: int = 0, incarnation: int = 1) -> ProcessId:
    return ProcessId(JOB, role, index, incarnation)


async def patiently(call: Callable[[], Awaitable[object]]) -> None:
    """As masters and the api do: until it is answered."""
    async with asyncio.timeout(90):
        while True:
            try:
                await call()
                return
            except UnavailableError:
                await asyncio.sleep(0.05)


async def scenario(launcher: KubernetesLauncher) -> None:
    """Launch, scale, drain, replace, end."""
    for one in (process(Role.MASTER), process(Role.PS), process(Role.WORKER)):
        await patiently(lambda one=one: launcher.launch(ProcessSpec(one, slots=int(one.role is Role.WORKER))))
        await until(launcher, one, ProcessState.RUNNING)
    second, newer = process(Role.WORKER, 1), process(Role.PS, 0, 2)
    await patiently(launcher.capacity)
    await patiently(lambda: launcher.launch(ProcessSpec(second, slots=1)))
    await until(launcher, second, ProcessState.RUNNING)
    await patiently(lambda: launcher.terminate(second, grace_s=20.0))
    await until(launcher, second, ProcessState.EXITED)
    await patiently(lambda: launcher.launch(ProcessSpec(newer)))
    await until(launcher, newer, ProcessState.RUNNING)
    await patiently(lambda: launcher.terminate_job(JOB, grace_s=20.0))
    async with asyncio.timeout(90):
        while launcher.leaving(JOB):  # noqa: ASYNC110 - the port tells nobody of it
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("name", EACH)
async def test_a_job_s_processes_live_once_and_leave_nothing(directories: AgentDirectories, name: str) -> None:
    fault = FAULTS[name]
    with pod_cluster(directories) as cluster:
        made: list[str] = []

        def note(event) -> None:
            if event.key[0] == "pods" and event.before is None:
                made.append(event.key[2])

        cluster.do(lambda: cluster.store.listeners.append(note))
        async with pod_launcher(cluster, directories) as launcher:
            await launcher.list()
            cluster.do(lambda: cluster.api.faults.append(Fault(**vars(fault))))
            await scenario(launcher)
        assert sorted(made) == sorted(set(made)) and len(made) == 5
        assert left(cluster) == []


async def explained(launcher: KubernetesLauncher, one: ProcessId, words: bytes) -> None:
    """Waits until the log of a process says so, and its status, while the process waits."""
    async with asyncio.timeout(60):
        while True:
            pieces = launcher.logs(one.job_id, one.role, one.index, tail=None, follow=False)
            if words in b"".join([piece async for piece in pieces]):
                break
            await asyncio.sleep(0.05)
    status = {status.id: status for status in await launcher.list(one.job_id)}[one]
    assert status.state is ProcessState.PENDING and words.decode() in status.waits_for


def left(cluster: FakeKubernetes) -> list[tuple[str, str, str]]:
    """What there still is of the job."""
    return cluster.do(lambda: [key for key in cluster.store.objects if JOB in key[2]])


async def test_watches_that_are_cut_and_versions_that_are_gone(pod_harness: PodHarness) -> None:
    """Changes of the time between are not missed, and the lists are few."""
    harness, cluster = pod_harness, pod_harness.cluster
    await harness.launcher.launch(harness.spec(process(Role.WORKER)))
    await harness.ready(process(Role.WORKER))
    before = cluster.do(lambda: cluster.api.requests.count(("list", "pods")))
    for round_ in range(3):
        cluster.do(lambda: (cluster.store.forget(), cluster.api.cut_watches()))
        await harness.launcher.launch(harness.spec(process(Role.PS, round_), "exit:3"))
        await until(harness.launcher, process(Role.PS, round_), ProcessState.EXITED)
    assert cluster.do(lambda: cluster.api.requests.count(("list", "pods"))) - before <= 6


async def test_a_launcher_that_begins_anew_finds_everything(directories: AgentDirectories) -> None:
    """Ended, running and gated processes; the gate is opened though another launcher closed it."""
    with pod_cluster(directories) as cluster:
        async with pod_launcher(cluster, directories) as first:
            await first.launch(ProcessSpec(process(Role.WORKER), {"STUB": "exit:3"}))
            await until(first, process(Role.WORKER), ProcessState.EXITED)
            await first.launch(ProcessSpec(process(Role.PS), {"STUB": "stubborn"}))
            await until(first, process(Role.PS), ProcessState.RUNNING)
            await first.launch(ProcessSpec(process(Role.PS, 0, 2)))
        async with pod_launcher(cluster, directories) as second:
            await until(second, process(Role.PS, 0, 2), ProcessState.RUNNING)
            found = {status.id: (status.state, status.exit_code) for status in await second.list(JOB)}
            assert found[process(Role.WORKER)] == (ProcessState.EXITED, 3)
            assert found[process(Role.PS)][0] is ProcessState.EXITED
            await second.launch(ProcessSpec(process(Role.WORKER)))
            assert len(await second.list(JOB)) == 3, "an id is launched once"


async def test_who_deletes_the_anchor_deletes_the_job(pod_harness: PodHarness) -> None:
    launcher, cluster = pod_harness.launcher, pod_harness.cluster
    for role in (Role.MASTER, Role.WORKER):
        await launcher.launch(pod_harness.spec(process(role)))
        await pod_harness.ready(process(role))
    cluster.do(lambda: cluster.store.delete(KINDS["configmaps"], "default", f"job-{JOB}"))
    for role in (Role.MASTER, Role.WORKER):
        assert (await until(launcher, process(role), ProcessState.EXITED)).reason == "terminated"
    async with asyncio.timeout(90):
        while left(cluster):  # noqa: ASYNC110 - another thread's
            await asyncio.sleep(0.02)


async def test_a_quota_without_room_is_waited_for(pod_harness: PodHarness) -> None:
    launcher, cluster = pod_harness.launcher, pod_harness.cluster
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}
    cluster.do(lambda: cluster.store.create(KINDS["resourcequotas"], "default", quota))
    for index in range(2):
        await launcher.launch(pod_harness.spec(process(Role.PS, index)))
    await pod_harness.ready(process(Role.PS, 0))
    assert [status.state for status in await launcher.list(JOB)] == [ProcessState.RUNNING, ProcessState.PENDING]
    log = b"".join([piece async for piece in launcher.logs(JOB, Role.PS, 1, tail=None, follow=False)])
    assert b"exceeded quota" in log
    following = asyncio.create_task(printed(launcher, process(Role.PS, 1), b"ready\n"))
    await launcher.terminate(process(Role.PS, 0), grace_s=20.0)
    await pod_harness.ready(process(Role.PS, 1))
    await following


async def test_servers_go_before_workers_that_wait_for_a_quota(pod_harness: PodHarness) -> None:
    launcher, cluster = pod_harness.launcher, pod_harness.cluster

    def allow(pods: int) -> None:
        for quota in cluster.store.all("resourcequotas"):
            cluster.store.delete(KINDS["resourcequotas"], "default", quota["metadata"]["name"])
        quota = {"metadata": {"name": f"q{pods}"}, "spec": {"hard": {"pods": str(pods)}}}
        cluster.store.create(KINDS["resourcequotas"], "default", quota)

    cluster.do(lambda: allow(0))
    for role in (Role.WORKER, Role.PS):
        await launcher.launch(pod_harness.spec(process(role)))
    cluster.do(lambda: allow(1))
    await pod_harness.ready(process(Role.PS))
    states = {status.id.role: status.state for status in await launcher.list(JOB)}
    assert states == {Role.PS: ProcessState.RUNNING, Role.WORKER: ProcessState.PENDING}
    cluster.do(lambda: allow(2))
    await pod_harness.ready(process(Role.WORKER))


@pytest.mark.parametrize("servers", [1, 2])
async def test_nodes_are_drained_of_one_server_at_a_time(each_pod_harness: PodHarness, servers: int) -> None:
    """Also of an only one: a budget of pods without a controller that nobody may go from stops every drain."""
    launcher = each_pod_harness.launcher
    assert isinstance(launcher, KubernetesLauncher)
    for index in range(servers):
        await launcher.launch(each_pod_harness.spec(process(Role.PS, index)))
    for index in range(servers):
        await each_pod_harness.ready(process(Role.PS, index))

    def evict(index: int) -> Awaitable[object]:
        path, name = launcher._pod(process(Role.PS, index)), f"{JOB}-ps-{index}-1"
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        return launcher._client.call("POST", f"{path}/eviction", eviction)

    await patiently(lambda: evict(0))  # until the budget has been looked at
    assert (await until(launcher, process(Role.PS), ProcessState.EXITED)).reason == "terminated"
    if servers > 1:
        with pytest.raises(UnavailableError, match="disruption budget"):
            await evict(1)


async def test_what_waits_for_a_quota_is_not_lost_by_a_failed_try(pod_harness: PodHarness) -> None:
    launcher, cluster = pod_harness.launcher, pod_harness.cluster
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}
    cluster.do(lambda: cluster.store.create(KINDS["resourcequotas"], "default", quota))
    await launcher.launch(pod_harness.spec(process(Role.WORKER)))

    def let() -> None:
        cluster.api.faults.append(Fault("create", "pods", code=503))
        cluster.store.delete(KINDS["resourcequotas"], "default", "q")

    cluster.do(let)
    await pod_harness.ready(process(Role.WORKER))
    assert cluster.do(lambda: cluster.api.faults) == []


@pytest.mark.parametrize("waits", [False, True], ids=["pod", "quota"])
async def test_a_launch_that_the_word_to_leave_overtakes_leaves_nothing(pod_harness: PodHarness, waits: bool) -> None:
    """Wherever the two cross: before the pod is asked for, and while it is made."""
    launcher, cluster = pod_harness.launcher, pod_harness.cluster
    if waits:
        quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}
        cluster.do(lambda: cluster.store.create(KINDS["resourcequotas"], "default", quota))
    call = launcher._client.call
    for kind in ("configmaps", "secrets", "pods"):
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def held(method: str, path: str, *more: Any, at=f"/{kind}", reached=reached, go_on=go_on, **how: Any):
            if method in ("POST", "PATCH") and at in path and not reached.is_set():
                reached.set()
                await go_on.wait()
            return await call(method, path, *more, **how)

        launcher._client.call = held  # type: ignore[method-assign]
        launching = asyncio.create_task(launcher.launch(pod_harness.spec(process(Role.PS))))
        async with asyncio.timeout(90):
            await reached.wait()
            await launcher.terminate_job(JOB, grace_s=20.0)
            go_on.set()
            with contextlib.suppress(ConflictError):
                await launching
            while launcher.leaving(JOB) or left(cluster):  # noqa: ASYNC110 - the port tells nobody of it
                await asyncio.sleep(0.02)


async def test_a_pod_that_only_looks_like_ours_hides_no_other(directories: AgentDirectories) -> None:
    with pod_cluster(directories) as cluster:
        found = {"metadata": {"name": "x", "labels": {MANAGED: "elasticdl", LABEL: JOB, ROLE: "cook"}}}
        found["spec"] = {"containers": [{"name": "a", "image": "nowhere.invalid/none:1"}]}
        cluster.do(lambda: cluster.store.create(KINDS["pods"], "default", found))
        async with pod_launcher(cluster, directories) as launcher:
            await launcher.launch(ProcessSpec(process(Role.PS)))
            await until(launcher, process(Role.PS), ProcessState.RUNNING)
            assert [status.id for status in await launcher.list()] == [process(Role.PS)]


async def test_what_is_refused_once_is_tidied_up_later(pod_harness: PodHarness) -> None:
    launcher, cluster = pod_harness.launcher, pod_harness.cluster
    await launcher.launch(pod_harness.spec(process(Role.WORKER)))
    await pod_harness.ready(process(Role.WORKER))
    cluster.do(lambda: cluster.api.faults.append(Fault("delete", "configmaps", code=403)))
    await launcher.terminate_job(JOB, grace_s=20.0)
    async with asyncio.timeout(90):
        while launcher.leaving(JOB):  # noqa: ASYNC110 - the port tells nobody of it
            await asyncio.sleep(0.02)
    assert left(cluster) == []


async def test_an_api_server_that_has_not_read_yet_who_may_do_what_fails_no_job(
    directories: AgentDirectories,
) -> None:
    """A real one that had been away denied an agent its rights for a moment, and the job failed for it."""
    with pod_cluster(directories) as cluster:
        token = cluster.user("agent", Rule(("*",), ("pods",)))
        async with pod_launcher(cluster, directories, token=token) as launcher:
            with pytest.raises(UnavailableError, match="cannot patch resource"):
                await launcher.launch(ProcessSpec(process(Role.PS)))
            cluster.do(lambda: cluster.api.users.update({token: ("agent", None)}))
            await launcher.launch(ProcessSpec(process(Role.PS)))
            await until(launcher, process(Role.PS), ProcessState.RUNNING)
            cluster.do(lambda: cluster.api.users.update({token: ("agent", ())}))
            with pytest.raises(UnavailableError, match="cannot delete resource"):
                await launcher.terminate(process(Role.PS), grace_s=1.0)


async def test_certificates_that_cannot_be_renewed_keep_no_gate_shut(directories: AgentDirectories) -> None:
    """An agent that begins anew renews those of all pods: with many, nothing else was done for minutes."""
    with pod_cluster(directories, "3.9") as cluster:
        async with pod_launcher(cluster, directories) as launcher:
            for one in (process(Role.PS), process(Role.PS, 1), process(Role.WORKER)):
                await launcher.launch(ProcessSpec(one, {"STUB": "stubborn"}))
                await printed(launcher, one, b"ready")
            await launcher.launch(ProcessSpec(process(Role.WORKER, 0, 2)))
        cluster.do(lambda: cluster.api.faults.append(Fault("patch", "secrets", code=503, times=1_000_000)))
        async with pod_launcher(cluster, directories) as launcher:
            await until(launcher, process(Role.WORKER, 0, 2), ProcessState.RUNNING)


async def test_a_pod_and_a_job_that_are_refused_for_ever_keep_no_others(pod_harness: PodHarness) -> None:
    launcher, cluster = pod_harness.launcher, pod_harness.cluster
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}
    cluster.do(lambda: cluster.store.create(KINDS["resourcequotas"], "default", quota))
    bad, good = process(Role.WORKER, 0), process(Role.WORKER, 1)
    call, delete = launcher._client.call, launcher._client.delete

    async def refuse(method: str, path: str, body: Any = None, **how: Any) -> Any:
        if method == "POST" and path.endswith("pods") and body["metadata"]["name"] == f"{JOB}-worker-0-1":
            raise PermissionDeniedError("a policy denies it", fix="")
        return await call(method, path, body, **how)

    async def keep(path: str, **how: Any) -> Any:
        if "configmaps" in path and "kept" in path:
            raise PermissionDeniedError("a policy denies it", fix="")
        return await delete(path, **how)

    for one in (bad, good):
        await launcher.launch(pod_harness.spec(one))
    launcher._client.call, launcher._client.delete = refuse, keep  # type: ignore[method-assign]
    cluster.do(lambda: cluster.store.delete(KINDS["resourcequotas"], "default", "q"))
    await pod_harness.ready(good)
    assert (await until(launcher, bad, ProcessState.EXITED)).reason == "cannot_start"
    await launcher.terminate_job("kept-1", grace_s=20.0)
    await launcher.terminate_job(JOB, grace_s=20.0)
    async with asyncio.timeout(90):
        while launcher.leaving(JOB):  # noqa: ASYNC110 - the port tells nobody of it
            await asyncio.sleep(0.02)
    assert launcher.leaving("kept-1")
    assert left(cluster) == []


async def test_an_agent_renews_its_own_certificate_though_its_secrets_are_refused(
    directories: AgentDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = asyncio.Event()
    monkeypatch.setattr(RpcCredentials, "adopt", lambda credentials, content: renewed.set())
    with pod_cluster(directories) as cluster:
        cluster.do(lambda: cluster.api.faults.append(Fault("patch", "secrets", code=403, times=1_000_000)))
        settings = pod_settings(
            directories, KUBECONFIG=str(cluster.kubeconfig()), listen="127.0.0.1:0", ELASTICDL_CERTIFICATE_HOURS=0.002
        )
        async with KubernetesAgent(settings):
            await within(renewed.wait(), 60)


async def test_two_of_them_in_one_namespace_do_not_end_each_others_jobs(directories: AgentDirectories) -> None:
    """Each would take the other's pods for those of jobs that are over, and hand out its own credentials."""
    with pod_cluster(directories) as cluster:
        changed = {"KUBECONFIG": str(cluster.kubeconfig()), "listen": "127.0.0.1:0"}
        cluster.do(lambda: cluster.api.faults.append(Fault("create", "configmaps", code=503, times=2)))
        async with KubernetesAgent(pod_settings(directories, **changed)):
            pass
        async with KubernetesAgent(pod_settings(directories, **changed)):  # it is started anew
            pass
        other = pod_settings(directories, **changed, cluster_secret="another cluster's secret")
        with pytest.raises(ConflictError, match="another ElasticDL makes its pods in the namespace default"):
            async with KubernetesAgent(other):
                pass


async def test_pods_go_through_sets_in_one_order(pod_harness: PodHarness) -> None:
    """A model may be made by going through a set: workers would have other layers under a name (ADR 87)."""
    await pod_harness.launcher.launch(pod_harness.spec(process(Role.WORKER)))
    pods = pod_harness.cluster.do(lambda: pod_harness.cluster.store.all("pods"))
    secrets = pod_harness.cluster.do(lambda: pod_harness.cluster.store.all("secrets"))
    (variable,) = [one for one in pods[0]["spec"]["containers"][0]["env"] if one["name"] == "PYTHONHASHSEED"]
    assert variable["valueFrom"]["secretKeyRef"]["name"] == secrets[0]["metadata"]["name"]
    assert base64.b64decode(secrets[0]["data"]["PYTHONHASHSEED"]) == b"0"


async def test_pods_get_what_stores_need_and_nothing_else(
    pod_harness: PodHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name; what a launch asks for goes before."""
    for name, value in {"AWS_ACCESS_KEY_ID": "key", "AWS_ENDPOINT_URL": "http://store", "AWS_SECRET": "s"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ELASTICDL_STORE_VARIABLES", "AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ELASTICDL_CLUSTER_SECRET")
    monkeypatch.setenv("ELASTICDL_CLUSTER_SECRET", "secret")
    spec = ProcessSpec(process(Role.WORKER), {"AWS_ENDPOINT_URL": "http://other"})
    await pod_harness.launcher.launch(spec)
    (secret,) = pod_harness.cluster.do(lambda: pod_harness.cluster.store.all("secrets"))
    given = {name: base64.b64decode(text).decode() for name, text in secret["data"].items()}
    assert (given["AWS_ACCESS_KEY_ID"], given["AWS_ENDPOINT_URL"]) == ("key", "http://other")
    assert not {"AWS_SECRET", "ELASTICDL_CLUSTER_SECRET", "PATH"} & given.keys()
    (pod,) = pod_harness.cluster.do(lambda: pod_harness.cluster.store.all("pods"))
    assert "AWS_ACCESS_KEY_ID" in {one["name"] for one in pod["spec"]["containers"][0]["env"]}


async def test_an_image_that_cannot_be_pulled_is_told(directories: AgentDirectories) -> None:
    """It is waited for, since its registry may be away for a while, but not for ever."""
    with pod_cluster(directories) as cluster:
        async with pod_launcher(cluster, directories, image="nowhere.invalid/none:1", patience_s=0.5) as launcher:
            await launcher.launch(ProcessSpec(process(Role.WORKER)))
            await until(launcher, process(Role.WORKER), ProcessState.PENDING)
            status = await until(launcher, process(Role.WORKER), ProcessState.EXITED)
            log = b"".join([piece async for piece in launcher.logs(JOB, Role.WORKER, 0, tail=None, follow=False)])
    assert (status.reason, status.exit_code) == ("cannot_start", 127)
    assert b"the image nowhere.invalid/none:1 cannot be pulled" in log


async def test_an_image_that_comes_is_waited_for(directories: AgentDirectories) -> None:
    with pod_cluster(directories) as cluster:
        image = cluster.images.pop("elasticdl:test")
        async with pod_launcher(cluster, directories) as launcher:
            await launcher.launch(ProcessSpec(process(Role.PS)))
            await explained(launcher, process(Role.PS), b"cannot be pulled")
            cluster.images["elasticdl:test"] = image
            cluster.do(cluster.kubelets["node-0"].read)
            await until(launcher, process(Role.PS), ProcessState.RUNNING)


async def test_a_node_with_master_and_server_is_lost_and_comes_back(directories: AgentDirectories) -> None:
    """The other has no room for the server: it waits, also for a kubelet that has only begun."""
    with pod_cluster(directories, "0.2", "8") as cluster:
        async with pod_launcher(cluster, directories, server_cpu="500m") as launcher:
            for role in (Role.MASTER, Role.PS):
                await launcher.launch(ProcessSpec(process(role)))
                await until(launcher, process(role), ProcessState.RUNNING)
            cluster.kill_node("node-1")
            for role in (Role.MASTER, Role.PS):
                assert (await until(launcher, process(role), ProcessState.EXITED)).reason == "launcher_lost"
                await launcher.launch(ProcessSpec(process(role, 0, 2)))
                await explained(launcher, process(role, 0, 2), b"waits for a node")
            cluster.start_node("node-1", reads=False)
            for role in (Role.MASTER, Role.PS):
                await explained(launcher, process(role, 0, 2), b"services have not yet been read")
            cluster.do(cluster.kubelets["node-1"].read)
            for role in (Role.MASTER, Role.PS):
                await until(launcher, process(role, 0, 2), ProcessState.RUNNING)


async def test_what_a_lost_node_leaves_is_not_reached_by_its_name(directories: AgentDirectories) -> None:
    """Its pod goes on to exist until the node is back, and Services lead to pods before they are ready."""
    with pod_cluster(directories, "2.9", "2.9") as cluster:
        async with pod_launcher(cluster, directories) as launcher:
            await launcher.launch(ProcessSpec(process(Role.PS)))
            await until(launcher, process(Role.PS), ProcessState.RUNNING)
            pods = cluster.do(lambda: cluster.store.all("pods"))
            cluster.kill_node(pods[0]["spec"]["nodeName"])
            await launcher.launch(ProcessSpec(process(Role.PS, 0, 2)))
            await until(launcher, process(Role.PS, 0, 2), ProcessState.RUNNING)
            (service,) = cluster.do(lambda: cluster.store.all("services"))
            reached = cluster.do(
                lambda: cluster.store.all(
                    "pods", match=lambda pod: service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
                )
            )
    assert [pod["metadata"]["name"] for pod in reached] == [f"{JOB}-ps-0-2"]


async def test_variables_that_no_pod_can_have_are_refused(pod_harness: PodHarness) -> None:
    with pytest.raises(InvalidInputError, match="environment variable"):
        await pod_harness.launcher.launch(ProcessSpec(process(Role.WORKER), {"A B": "c"}))
    with pytest.raises(InvalidInputError, match="whole ones"):
        await pod_harness.launcher.launch(ProcessSpec(process(Role.WORKER), device_share=50))
    assert await pod_harness.launcher.list() == []
