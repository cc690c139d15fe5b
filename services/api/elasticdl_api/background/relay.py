"""Delivers launch intents to the launcher, at least once; launching the same id twice launches once."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from elasticdl_api.places.path_policies import PathPolicies
from elasticdl_api.store.intents import Delivery, IntentStore
from elasticdl_api.web import telemetry
from elasticdl_core.errors import ConflictError, ElasticDLError, UnavailableError
from elasticdl_core.job import JobSpec
from elasticdl_core.ports.launcher import JOB_REVISION, Launcher, ProcessSpec, Tenant
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.items import Items, ItemsPass

REFUSED = "refused: "
_LATER = "later"
POSTPONE_S = 1.0
_log = structlog.get_logger(__name__)


class Relay:
    """Delivers what is due. Replicas share the work: an intent in delivery is locked.

    Args:
        intents: where the intents are.
        launcher: where they go.
        reaches: says what of the machine a job may touch, which its launcher opens to its workers.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        intents: IntentStore,
        launcher: Launcher,
        reaches: PathPolicies,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._intents = intents
        self._launcher = launcher
        self._reaches = reaches
        self._is_agent_checked = False
        self._items = Items("relay", clock, tell=telemetry.tell_of("relay"))

    async def step(self) -> None:
        """Delivers all that is due.

        Raises:
            UnavailableError: the database or the launcher is down; nothing is lost.
        """
        passed: set[str] = set()
        self._is_agent_checked = False
        round_ = self._items.begin()
        while await self._deliver_one(round_, passed):
            pass
        round_.end()

    async def _deliver_one(self, round_: ItemsPass, passed: set[str]) -> bool:
        async with self._intents.take_next(passed) as delivery:
            if delivery is None:
                return False
            outcome: str | None = None

            async def deliver() -> None:
                nonlocal outcome
                try:
                    outcome = await self._launch(delivery) if delivery.wanted else "dropped"
                except ConflictError as error:
                    # What is left of the job's last run is still being ended: soon it is not.
                    _log.info("launch put off", process=str(delivery.process), reason=error.message)
                    await delivery.postpone(POSTPONE_S)
                    outcome = _LATER

            await round_.handle(str(delivery.process), deliver)
            if outcome is None:
                passed.add(str(delivery.process))
                return True
            if outcome == _LATER:
                return True
            await delivery.settle(outcome)
        telemetry.LAUNCHES.labels((outcome or "launched").partition(":")[0]).inc()
        _log.info("launch intent settled", process=str(delivery.process), outcome=outcome or "launched")
        return True

    async def _require_present_agent(self) -> None:
        """Launches nothing by an agent of a release to whose masters a job's specification means something else."""
        if not self._is_agent_checked:
            revision = (await self._launcher.capacity()).job_revision
            if revision < JOB_REVISION:
                raise ElasticDLError(
                    f"the agent is of an earlier release: its masters read jobs as of revision {revision}, "
                    f"not {JOB_REVISION}",
                    fix="restart the agent with the release of the api; jobs wait until then",
                )
            self._is_agent_checked = True

    async def _launch(self, delivery: Delivery) -> str:
        await self._require_present_agent()
        process = delivery.process
        restricted, reach = await self._reaches.of_workers(process.job_id)
        spec = JobSpec.from_mapping(delivery.spec)
        memory, pod = spec.memory_of(process.role), spec.pod_of(process.role)
        tenant = Tenant(delivery.namespace, restricted, reach.read, reach.write)
        try:
            failpoint("api.before_intent")
            await self._launcher.launch(ProcessSpec(process, memory_mib=memory, tenant=tenant, pod=pod))
            failpoint("api.after_intent")
        except (UnavailableError, ConflictError):
            raise
        except ElasticDLError as error:
            return f"{REFUSED}{error.message}"
        return ""
