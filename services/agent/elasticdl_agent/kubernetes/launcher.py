"""The Kubernetes launcher: each process of a job is a pod; what the API server holds is the truth.

Nothing is kept here that cannot be read again. What was asked for is written into objects (a pod, its deletion, a
gate), and a loop that looks at all pods does what is left to do, however often it is started anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from signal import SIGTERM
from types import TracebackType

import structlog

from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.kubernetes import capacity as of_nodes
from elasticdl_agent.kubernetes.client import KubernetesClient, Manifest, NoRightError, QuotaExceededError
from elasticdl_agent.kubernetes.manifests import (
    SELECTOR,
    SERVERS,
    PodTemplate,
    anchor_name,
    credentials_patch,
    pod_name,
    process_named,
)
from elasticdl_agent.kubernetes.mirror import ResourceMirror
from elasticdl_agent.kubernetes.pod_logs import PodLog, cut
from elasticdl_agent.kubernetes.pod_states import PodFacts, cannot_start, facts_of
from elasticdl_agent.processes.credentials import ProcessCertificates
from elasticdl_agent.processes.environment import (
    Endpoints,
    check_variables,
    fixed_environment,
    stated_environment,
    store_environment,
)
from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from elasticdl_core.meters import MeterKey
from elasticdl_core.pods import parse_pairs, quantity
from elasticdl_core.ports.launcher import (
    CapacityInfo,
    DeviceUse,
    Inquiry,
    InspectedProcess,
    ProcessId,
    ProcessSpec,
    ProcessState,
    ProcessStatus,
    Role,
)
from elasticdl_runtime.items import Items, ItemsPass
from elasticdl_runtime.launcher.addresses import process_address

_BACKOFF = Backoff(0.2, 10.0)
_LOOK_S = 5.0
_CAPACITY_S = 5.0
_LISTED_S = 4.0
_AGAIN_S = 0.2
_QUIET_S = 1.0
"""Between looks for the next incarnation of a process whose log is followed."""
_KEEP_OLDER = 3
"""Older incarnations of a process whose pods, and so logs, are kept."""
_AT_A_TIME = 16
_log = structlog.get_logger(__name__)
_Place = tuple[str, Role, int]


class KubernetesLauncher:
    """Implements the launcher port (``elasticdl_core.ports.launcher.Launcher``); an async context manager.

    Args:
        client: of the API server; it stays the caller's.
        template: what pods have in common.
        endpoints: what masters are told.
        certificates: issued to processes.

    Attributes:
        agent: the address under which masters reach this agent.
    """

    def __init__(
        self,
        client: KubernetesClient,
        template: PodTemplate,
        endpoints: Endpoints,
        certificates: ProcessCertificates,
    ) -> None:
        settings = template.settings
        self._client, self._template, self._endpoints, self._certificates = client, template, endpoints, certificates
        self._rules = settings.rules
        self._directories = AgentDirectories(settings.data_dir, settings.data_dir)
        self.agent = f"tls://agent.elasticdl@{settings.service}.{template.namespace}.svc:{_port(settings.listen)}"
        self._statuses: dict[ProcessId, ProcessStatus] = {}
        self._places: dict[str, dict[_Place, set[ProcessId]]] = {}
        """The processes of each job, by role and index."""
        self._changed: set[_Place] = set()
        """Places of which something changed since they were looked at; all are looked at every few seconds."""
        self._all_due = 0.0
        self._slots: dict[ProcessId, tuple[int, int]] = {}
        self._for_quota: dict[ProcessId, Manifest] = {}
        self._watchers: dict[asyncio.Queue[ProcessStatus], str] = {}
        self._leaving: dict[str, int] = {}
        """Jobs that were told to leave, with the seconds that their pods have for it."""
        self._launching: Counter[str] = Counter()
        self._without_secret: set[ProcessId] = set()
        self._renewed: dict[ProcessId, float] = {}
        self._troubled: dict[ProcessId, float] = {}
        """When pods were seen to wait for what may never come, until they wait for it no more."""
        self._dirty = asyncio.Event()
        self._items = Items("pods", backoff=_BACKOFF)
        self._renewals = Items("credentials of pods", backoff=_BACKOFF)
        self._tasks: list[asyncio.Task[None]] = []
        self._seen_capacity: tuple[float, CapacityInfo] | None = None
        self._launches = self._endings = 0
        self._mirror = ResourceMirror(
            client, template.path("pods"), {"labelSelector": SELECTOR}, facts_of, self._pod_changed
        )

    async def __aenter__(self) -> KubernetesLauncher:
        self._tasks = [
            asyncio.create_task(self._mirror.run(), name="pods"),
            asyncio.create_task(self._tidy(), name="tidy"),
            asyncio.create_task(self._renew(), name="credentials"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def address(self, job_id: str, role: Role, index: int) -> str:
        """The gRPC address where that process listens: the same for each incarnation."""
        return process_address(self.agent, job_id, role, index)

    def leaving(self, job_id: str) -> bool:
        """Whether the job as a whole was told to leave and has not left yet."""
        return job_id in self._leaving

    async def launch(self, spec: ProcessSpec) -> None:
        """Launches a process; does nothing if that id was launched before, whatever became of it.

        A newer incarnation replaces a living older one and waits, behind a gate, until that has ended. Where a quota
        has no room it is pending until it has.

        Raises:
            InvalidInputError: the id is malformed, or no pod can be what is asked for.
            ConflictError: a newer incarnation was launched, or what is left of the job's last run is being ended.
            UnavailableError: the API server is away.
        """
        process = spec.id
        self._directories.check(process)
        check_variables(spec.environment)
        refused = next(self._rules.problems(spec.pod, str(process.role), spec.memory_mib), None)
        if refused is not None:
            raise InvalidInputError(f"{refused.field}: {refused.message}", fix=refused.fix)
        await self._listed()
        if process in self._statuses:
            return
        if process.job_id in self._leaving:
            raise ConflictError(f"job {process.job_id} is being terminated", fix="launch again when it has left")
        siblings = self._siblings(process)
        if any(other.incarnation > process.incarnation for other in siblings):
            raise ConflictError(
                f"a newer incarnation of {process} was launched before", fix="take a higher incarnation"
            )
        if spec.slots > 1 and spec.slots > (await self.capacity()).slots:
            raise InvalidInputError(
                f"{process} wants {spec.slots} slots, more than the cluster has", fix="ask for fewer, or add nodes"
            )
        older = [other for other in siblings if not self._ended(other)]
        self._launching[process.job_id] += 1
        try:
            pod = await self._prepare(spec, gated=bool(older))
            if process.job_id in self._leaving:
                raise ConflictError(f"job {process.job_id} is being terminated", fix="launch again when it has left")
            if waits_for := await self._create(process, pod):
                self._for_quota[process] = pod
            if process not in self._statuses:
                self._set(ProcessStatus(process, ProcessState.PENDING, message=waits_for))
        except NoRightError as error:
            raise _away(error) from None
        except PermissionDeniedError as error:
            raise InvalidInputError(error.message, fix=error.fix) from None
        finally:
            self._launching[process.job_id] -= 1
            self._launching += Counter()
            self._look_at(process)
        self._launches += 1
        for other in older:
            await self.terminate(other, grace_s=0.0)

    async def terminate(self, process: ProcessId, *, grace_s: float) -> None:
        """Deletes the pod: it is asked to leave, and killed after ``grace_s`` seconds. Returns at once.

        Raises:
            UnavailableError: the API server is away.
        """
        await self._listed()
        if self._ended(process):
            return
        if process in self._for_quota:
            del self._for_quota[process]
            self._set(ProcessStatus(process, ProcessState.EXITED, -SIGTERM, "terminated"))
            return
        try:
            await self._client.delete(self._pod(process), grace_s=_grace(grace_s))
        except NoRightError as error:
            raise _away(error) from None

    async def terminate_job(self, job_id: str, *, grace_s: float, roles: frozenset[Role] = frozenset(Role)) -> None:
        """Does so for all processes of a job; of all roles, all that the job has in the cluster goes with the last.

        Raises:
            UnavailableError: the API server is away.
        """
        await self._listed()
        if roles == frozenset(Role):
            self._leaving[job_id] = _grace(grace_s)
        for process in self._of_job(job_id):
            if process.role in roles:
                await self.terminate(process, grace_s=grace_s)
            self._look_at(process)
        self._dirty.set()

    async def list(self, job_id: str | None = None) -> list[ProcessStatus]:
        """All known processes of a job, or of all jobs, oldest first.

        Raises:
            UnavailableError: the pods have not been read yet.
        """
        await self._listed()
        return [status for process, status in self._statuses.items() if job_id in (None, process.job_id)]

    async def watch(self, job_id: str) -> AsyncGenerator[ProcessStatus]:
        """Yields the present statuses of a job's processes, then each change.

        Raises:
            UnavailableError: the pods have not been read yet.
        """
        queue: asyncio.Queue[ProcessStatus] = asyncio.Queue()
        present = await self.list(job_id)
        self._watchers[queue] = job_id
        try:
            for status in present:
                yield status
            while True:
                yield await queue.get()
        finally:
            del self._watchers[queue]

    async def capacity(self) -> CapacityInfo:
        """Workers that fit on the nodes, and those that there are.

        Raises:
            UnavailableError: the API server is away.
        """
        await self._listed()
        used: dict[str, int] = {}
        uses = []
        for process, (slots, share) in self._slots.items():
            if slots and not self._ended(process):
                used[process.job_id] = used.get(process.job_id, 0) + slots
                if share:
                    uses.append(DeviceUse(process.job_id, process.index, (), share))
        if self._seen_capacity is None or time.monotonic() > self._seen_capacity[0]:
            self._seen_capacity = time.monotonic() + _CAPACITY_S, await self._look_at_nodes()
        seen = self._seen_capacity[1]
        return CapacityInfo(
            seen.slots,
            used,
            isolation="pods",
            devices=seen.devices,
            device_uses=tuple(sorted(uses)),
            pods=self._rules,
        )

    async def reserve(self, name: str, slots: int, *, grace_s: float) -> None:
        """Refused: who is to go first in a cluster, its priority classes say.

        Raises:
            InvalidInputError: always.
        """
        raise InvalidInputError(
            "slots of a Kubernetes cluster are not reserved here",
            fix="give the service's pods a priority class above that of jobs, which then leave for them",
        )

    async def release(self, name: str) -> None:
        """Refused as ``reserve``.

        Raises:
            NotFoundError: always.
        """
        raise NotFoundError(f"no slots are reserved for {name!r}", fix="do nothing")

    async def logs(
        self,
        job_id: str,
        role: Role,
        index: int,
        *,
        tail: int | None,
        follow: bool,
        since: float | None = None,
        lines: int | None = None,
    ) -> AsyncGenerator[bytes]:
        """Yields pieces of what the incarnations of a process printed; with ``follow`` for as long as they are read.

        What kept a pod from its work stands at the end of its log.

        Raises:
            NotFoundError: that process was never launched.
            UnavailableError: the API server is away.
        """
        await self._listed()
        done: list[ProcessId] = []
        sent = 0
        while True:
            known = [one for one in self._siblings(ProcessId(job_id, role, index, 0)) if one not in done]
            if not known and not done:
                raise NotFoundError(f"there is no log of {role} {index}", fix="wait until it has started")
            if not done:
                past = b"".join([piece for one in known async for piece in self._read(one, since, waits=not follow)])
                shown = cut(past, tail, lines)
                if shown:
                    yield shown
                if not follow:
                    return
                sent = len(past)
            if not known:
                yield b""
                await asyncio.sleep(_QUIET_S)
            for process in known:
                async with contextlib.aclosing(self._read(process, since, follow=True)) as pieces:
                    async for piece in pieces:
                        new, sent = piece[sent:], max(0, sent - len(piece))
                        if new:
                            yield new
                done.append(process)

    async def meters(self) -> Mapping[MeterKey, float]:
        """The numbers of present and past processes."""
        return self.numbers()

    def numbers(self) -> dict[MeterKey, float]:
        """The numbers of present and past processes."""
        states = [status.state for status in self._statuses.values()]
        return {
            ("elasticdl_agent_processes", "pending"): float(states.count(ProcessState.PENDING)),
            ("elasticdl_agent_processes", "running"): float(states.count(ProcessState.RUNNING)),
            ("elasticdl_agent_launches_total", ""): float(self._launches),
            ("elasticdl_agent_ended_total", ""): float(self._endings),
        }

    async def inspect(
        self, job_id: str | None, inquiry: Inquiry, *, seconds: float = 0.0
    ) -> Sequence[InspectedProcess]:
        """Names the living processes; none is asked: that takes a door in each, which pods do not have yet."""
        return [
            InspectedProcess(process, str(status.state))
            for process, status in self._statuses.items()
            if job_id in (None, process.job_id) and not self._ended(process)
        ]

    # -- making pods -----------------------------------------------------------------------------------------------

    async def _prepare(self, spec: ProcessSpec, *, gated: bool) -> Manifest:
        """Makes all that a pod needs before it; returns its manifest."""
        process, template, directories = spec.id, self._template, self._directories
        job_dir = directories.job_dir(process.job_id)
        environment = store_environment() | stated_environment(spec, job_dir, self.agent, self._endpoints)
        environment |= fixed_environment(environment)
        await asyncio.to_thread(self._make_folders, process.job_id)
        anchor = await self._client.apply(
            template.path("configmaps", anchor_name(process.job_id)), template.anchor(process.job_id)
        )
        uid = str(anchor["metadata"]["uid"])
        pod = template.pod(spec, environment, directories, uid, gated=gated)
        credentials = self._certificates.of_process(process)
        if process.role in SERVERS:
            # What is left of an older incarnation, as on a node that is lost, is not reached by its name any more.
            service = template.service(process, uid)
            await self._client.apply(template.path("services", service["metadata"]["name"]), service)
        if process.role is Role.PS:
            known = [one.index for one in self._of_job(process.job_id) if one.role is Role.PS]
            budget = template.budget(process.job_id, uid, 1 + max([process.index, *known]))
            await self._client.apply(template.path("poddisruptionbudgets", budget["metadata"]["name"]), budget)
        secret = template.secret(spec, environment, credentials, uid)
        await self._client.apply(template.path("secrets", pod_name(process)), secret)
        self._renewed[process] = time.monotonic()
        self._slots[process] = spec.slots, spec.device_share
        return pod

    async def _create(self, process: ProcessId, pod: Manifest) -> str:
        """Makes a pod, unless it is there; returns what it waits for where a quota has no room, else nothing.

        Workers let the servers of their job go first, without which they could do nothing.
        """
        waits = next((one for one in self._for_quota if one.job_id == process.job_id and one.role in SERVERS), None)
        if waits is not None and process.role not in SERVERS:
            return f"waits until the quota has room for {waits}"
        try:
            await self._client.call("POST", self._template.path("pods"), pod)
        except ConflictError:
            pass  # it was made before
        except QuotaExceededError as error:
            return error.message
        return ""

    def _make_folders(self, job_id: str) -> None:
        """On the shared volume, as the user of all pods: the kubelet would make them as root."""
        directories = self._directories
        try:
            for folder in (directories.job_dir(job_id), *directories.worker_folders(job_id)):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UnavailableError(
                f"the shared volume cannot be written: {error}",
                fix="see that the agent mounts the claim at its data_dir",
            ) from None

    # -- what pods do ----------------------------------------------------------------------------------------------

    def _pod_changed(self, name: str, facts: PodFacts | None) -> None:
        if facts is not None:
            process = facts.status.id
            self._look_at(process)
            self._for_quota.pop(process, None)
            if facts.troubled:
                self._troubled.setdefault(process, time.monotonic())
            else:
                self._troubled.pop(process, None)
            known = self._statuses.get(process)
            if known is None or (known != facts.status and known.state is not ProcessState.EXITED):
                self._set(facts.status)
            return
        # Nothing of ours removes the record of a pod that lives.
        with contextlib.suppress(ValueError):
            process = process_named(name)
            self._look_at(process)
            if not self._ended(process):
                self._set(ProcessStatus(process, ProcessState.EXITED, None, "launcher_lost"))

    def _set(self, status: ProcessStatus) -> None:
        process = status.id
        self._statuses[process] = status
        self._places.setdefault(process.job_id, {}).setdefault(_place(process), set()).add(process)
        if status.state is ProcessState.EXITED:
            self._endings += 1
            self._seen_capacity = None
            self._forget_old()
        for queue, job_id in self._watchers.items():
            if job_id == process.job_id:
                queue.put_nowait(status)

    def _forget_old(self) -> None:
        """Forgets processes of jobs of which nothing is left in the cluster when very many have ended."""
        keep = self._template.settings.keep_processes
        if len(self._statuses) <= keep + keep // 10:
            return
        present = {facts.status.id.job_id for facts in self._mirror.items.values()} | self._leaving.keys()
        present |= {process.job_id for process in self._statuses if not self._ended(process)}
        old = [process for process in self._statuses if process.job_id not in present]
        for process in old[: len(self._statuses) - keep]:
            del self._statuses[process]
            places = self._places[process.job_id]
            places[_place(process)].discard(process)
            if not any(places.values()):
                del self._places[process.job_id]
            for book in (self._slots, self._renewed, self._troubled):
                book.pop(process, None)
            self._without_secret.discard(process)

    # -- tidying up ------------------------------------------------------------------------------------------------

    async def _tidy(self) -> None:
        """Does what is left to do whenever something changed, and every few seconds."""
        await self._mirror.listed.wait()
        failed = 0
        while True:
            self._dirty.clear()
            try:
                await self._tidy_once()
            except Exception as error:
                failed += 1
                self._all_due = 0.0
                if not isinstance(error, UnavailableError):
                    _log.exception("what is left to do is put off")
                await asyncio.sleep(_BACKOFF.pause_s(failed))
                continue
            failed = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._dirty.wait()

    async def _tidy_once(self) -> None:
        round_, now = self._items.begin(), time.monotonic()
        changed, self._changed = self._changed, set()
        present: Iterable[PodFacts | None] = list(self._mirror.items.values())
        if now < self._all_due:
            round_.see(*self._items)
            there = [one for place in changed for one in self._places.get(place[0], {}).get(place, ())]
            present = [self._mirror.items.get(pod_name(one)) for one in there]
        else:
            self._all_due = now + _LOOK_S
        pods = (
            (f"pod of {facts.status.id}", partial(self._tidy_pod, facts.status.id, facts))
            for facts in filter(None, present)
        )
        await _side_by_side(round_, pods)
        for process, pod in sorted(self._for_quota.items(), key=lambda item: item[0].role not in SERVERS):
            await round_.handle(f"launch of {process}", partial(self._create_late, process, pod))
        for job_id in list(self._leaving):
            if all(self._ended(process) for process in self._of_job(job_id)) and not self._launching[job_id]:
                await round_.handle(f"end of {job_id}", partial(self._remove_job, job_id))
        round_.end()

    async def _create_late(self, process: ProcessId, pod: Manifest) -> None:
        """Makes a pod that waited for a quota; who was terminated meanwhile is seen to when the pod is."""
        if process.job_id in self._leaving:
            await self.terminate(process, grace_s=0.0)
        if process not in self._for_quota:
            return
        try:
            waits_for = await self._create(process, pod)
            if not waits_for:
                self._for_quota.pop(process, None)
            elif not self._ended(process) and self._statuses[process].message != waits_for:
                self._set(replace(self._statuses[process], message=waits_for))
        except NoRightError:
            raise
        except (InvalidInputError, PermissionDeniedError) as error:  # a quota is looked at before the pod
            self._for_quota.pop(process, None)
            if not self._ended(process):
                self._set(cannot_start(process, error.message))

    async def _tidy_pod(self, process: ProcessId, facts: PodFacts) -> None:
        siblings = self._siblings(process)
        if facts.gated and not facts.deleting:
            older = [
                other for other in siblings if other.incarnation < process.incarnation and not self._ended(other)
            ]
            for other in older:
                await self.terminate(other, grace_s=0.0)
            if not older:
                await self._patch(self._pod(process), {"spec": {"schedulingGates": None}})
        troubled = self._troubled.get(process, math.inf)
        if time.monotonic() > troubled + self._template.settings.patience_s and not self._ended(process):
            self._set(cannot_start(process, facts.status.message))
        if facts.hopeless and not facts.deleting:
            await self._client.delete(self._pod(process), grace_s=1, uid=facts.uid)
        elif not (facts.ended or facts.deleting) and (self._ended(process) or process.job_id in self._leaving):
            # Its creation and the word to leave crossed.
            await self._client.delete(self._pod(process), grace_s=self._leaving.get(process.job_id, 1), uid=facts.uid)
        if facts.ended:
            if process not in self._without_secret:
                await self._client.delete(self._template.path("secrets", pod_name(process)))
                self._without_secret.add(process)
            newer = sum(other.incarnation > process.incarnation for other in siblings)
            if newer > _KEEP_OLDER or (
                facts.deleting and process.job_id not in self._leaving and await self._orphaned(process)
            ):
                await self._remove_pod(process, facts)

    async def _renew(self) -> None:
        """Keeps the certificates of pods fresh; those of all, when the agent has begun anew, keep up nothing else."""
        await self._mirror.listed.wait()
        while True:
            round_ = self._renewals.begin()
            with contextlib.suppress(UnavailableError):
                due = (
                    (f"credentials of {facts.status.id}", partial(self._renew_pod, facts.status.id))
                    for facts in list(self._mirror.items.values())
                    if not facts.ended and time.monotonic() > self._renew_at(facts.status.id)
                )
                await _side_by_side(round_, due)
                round_.end()
            await asyncio.sleep(_LOOK_S)

    def _renew_at(self, process: ProcessId) -> float:
        return self._renewed.get(process, -math.inf) + self._certificates.renew_after_s

    async def _renew_pod(self, process: ProcessId) -> None:
        patch = credentials_patch(self._certificates.of_process(process))
        await self._patch(self._template.path("secrets", pod_name(process)), patch)
        self._renewed[process] = time.monotonic()

    async def _orphaned(self, process: ProcessId) -> bool:
        """Whether the anchor of its job is gone: somebody deleted all of the job, and its record with it."""
        try:
            await self._client.call("GET", self._template.path("configmaps", anchor_name(process.job_id)))
        except NotFoundError:
            return True
        return False

    async def _remove_job(self, job_id: str) -> None:
        await self._client.delete(self._template.path("configmaps", anchor_name(job_id)))
        left = [facts for facts in self._mirror.items.values() if facts.status.id.job_id == job_id]
        for facts in left:
            await self._remove_pod(facts.status.id, facts)
        if not left:
            self._leaving.pop(job_id, None)
        self._dirty.set()

    async def _remove_pod(self, process: ProcessId, facts: PodFacts) -> None:
        """Lets go of the record of a pod that has ended."""
        await self._client.delete(self._pod(process), grace_s=0 if facts.ended else 1, uid=facts.uid)
        await self._patch(self._pod(process), {"metadata": {"uid": facts.uid, "finalizers": None}})

    async def _patch(self, path: str, patch: Manifest) -> None:
        with contextlib.suppress(NotFoundError, ConflictError):
            await self._client.call("PATCH", path, patch, kind="application/merge-patch+json")

    # -- looking ---------------------------------------------------------------------------------------------------

    async def _listed(self) -> None:
        try:
            async with asyncio.timeout(_LISTED_S):
                await self._mirror.listed.wait()
        except TimeoutError:
            raise UnavailableError("the pods of jobs have not been listed yet", fix="try again") from None

    async def _look_at_nodes(self) -> CapacityInfo:
        settings, client, path = self._template.settings, self._client, self._template.path
        if settings.slots:
            return CapacityInfo(settings.slots)
        selector = parse_pairs(settings.node_selector, ",")
        living = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        nodes = [node async for page, _ in client.pages("/api/v1/nodes") for node in page]
        pods = [pod async for page, _ in client.pages("/api/v1/pods", living) for pod in page]
        quotas = [quota async for page, _ in client.pages(path("resourcequotas")) for quota in page]
        request = {"cpu": quantity(settings.worker_cpu), "memory": quantity(settings.worker_memory)}
        waiting = [pod for process, pod in self._for_quota.items() if process.role in SERVERS]
        slots = of_nodes.slots_of(nodes, pods, quotas, request, selector, waiting)
        return CapacityInfo(slots, devices=of_nodes.devices_of(nodes, selector))

    async def _read(
        self, process: ProcessId, since: float | None, *, follow: bool = False, waits: bool = False
    ) -> AsyncGenerator[bytes]:
        """Yields what a pod printed, and why it ended or, with ``waits``, what it waits for."""
        while follow and process in self._for_quota:  # noqa: ASYNC110 - what is tried is when a quota has room
            await asyncio.sleep(_AGAIN_S)
        if process not in self._for_quota:
            log = PodLog(self._client, self._pod(process), lambda: self._ended(process), since)
            async with contextlib.aclosing(log.read(follow=follow)) as pieces:
                async for piece in pieces:
                    yield piece
        status = self._statuses.get(process)
        if status is not None and status.message and (waits or status.state is ProcessState.EXITED):
            yield f"{status.message}\n".encode()

    def _ended(self, process: ProcessId) -> bool:
        """Whether nothing of it runs; also of what was never launched."""
        status = self._statuses.get(process)
        return status is None or status.state is ProcessState.EXITED

    def _of_job(self, job_id: str) -> Sequence[ProcessId]:
        return sorted(process for place in self._places.get(job_id, {}).values() for process in place)

    def _siblings(self, process: ProcessId) -> Sequence[ProcessId]:
        """All incarnations of a process."""
        return sorted(self._places.get(process.job_id, {}).get(_place(process), ()))

    def _look_at(self, process: ProcessId) -> None:
        """Has what is to be done about a process done now."""
        self._changed.add(_place(process))
        self._dirty.set()

    def _pod(self, process: ProcessId) -> str:
        return self._template.path("pods", pod_name(process))


def _place(process: ProcessId) -> _Place:
    return process.job_id, process.role, process.index


def _away(error: NoRightError) -> UnavailableError:
    """A right that the agent lacks is no fault of the job's: it may be given, or be known in a moment."""
    return UnavailableError(error.message, fix=error.fix)


async def _side_by_side(round_: ItemsPass, works: Iterable[tuple[str, Callable[[], Awaitable[None]]]]) -> None:
    """Handles items of a pass, some at a time: most of the time that each takes is the API server's."""
    waiting = iter(works)
    while batch := list(islice(waiting, _AT_A_TIME)):
        done = await asyncio.gather(*(round_.handle(*one) for one in batch), return_exceptions=True)
        for error in filter(None, done):
            raise error


def _grace(seconds: float) -> int:
    """The grace period of a deletion: 0 would remove the object while its containers still run."""
    return max(1, math.ceil(seconds))


def _port(listen: str) -> str:
    return listen.rpartition(":")[2]
