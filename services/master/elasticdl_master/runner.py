"""The runner: everything around the state machine of one job, as named tasks on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from elasticdl.data import columns_of, files
from elasticdl_core.checkpoint_manifest import Provenance
from elasticdl_core.errors import ElasticDLError, FencedError, UnavailableError, UserCodeError
from elasticdl_core.job import JobSpec, JobState
from elasticdl_core.path_policy import PathPolicy
from elasticdl_core.ports.launcher import Launcher, Role
from elasticdl_core.series import SeriesRecorder
from elasticdl_master.api import ApiClient
from elasticdl_master.artifacts import locate
from elasticdl_master.checkpointing import ServerOperations
from elasticdl_master.dispatcher import TaskDispatcher
from elasticdl_master.group_control import GroupControl
from elasticdl_master.group_service import GroupService
from elasticdl_master.handed_in_shares import HandedInShares
from elasticdl_master.heartbeats import Heartbeats
from elasticdl_master.job_lease import DesiredState
from elasticdl_master.kept_checkpoint import remove_kept
from elasticdl_master.listing import list_shards, open_readers
from elasticdl_master.model_holder import ModelHolder
from elasticdl_master.outbox import Outbox
from elasticdl_master.parameter_servers import ServerControl
from elasticdl_master.patience import PatientCalls
from elasticdl_master.pending_posts import PendingPosts, Post
from elasticdl_master.processes import Processes
from elasticdl_master.queue.port import TaskQueue
from elasticdl_master.read_only_holder import ReadOnlyHolder
from elasticdl_master.servicer import MasterServicer
from elasticdl_master.settings import MasterSettings, OwnToken
from elasticdl_master.startup import ResolvedCode, Startup
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.limits import Limits
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.meters import meters_of
from elasticdl_master.state.numbers import numbers_of
from elasticdl_master.state.setup import Setup
from elasticdl_master.state.status import status_of
from elasticdl_master.strategy import StrategyChooser
from elasticdl_proto.v1 import master_pb2
from elasticdl_runtime.checkpoint_directory import CheckpointDirectory
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.lifecycle import EXIT_FENCED, within
from elasticdl_runtime.rpc.service import listen, make_server
from elasticdl_runtime.telemetry import meters

_HEARTBEAT_S = 1.0
_TICK_S = 0.25
_REAP_S = 1.0
_LAST_WORDS_S = 3.0
_SERVER_GRACE_S = 1.0
_LAST_CHANGES_S = 3.0
_CANCEL_AGAIN_S = 2.0
_SAVE_S = 20.0
"""What is saved when the launcher goes down must be saved within that time: less than the launcher's grace."""
_PROCESS_KEY = ("role", "index", "incarnation")
_log = structlog.get_logger(__name__)
MakeQueue = Callable[[int], TaskQueue]
"""Takes the epoch."""


class JobRunner:
    """Runs one job until it has ended, or this master has to go.

    Args:
        settings: of this process.
        launcher: starts and stops processes.
        make_queue: makes the task queue of an epoch.
        stop: set when the process shall end; the job stays as it is, for the next master.
        limits: times and budgets.
        quit_at_once: ends the process without any clean-up, when a newer master took over.
    """

    def __init__(
        self,
        settings: MasterSettings,
        launcher: Launcher,
        make_queue: MakeQueue,
        stop: asyncio.Event,
        *,
        limits: Limits | None = None,
        quit_at_once: Callable[[int], Any] = os._exit,
    ) -> None:
        self._settings = settings
        self._launcher = launcher
        self._make_queue = make_queue
        self._stop = stop
        self._limits = limits
        self._quit_at_once = quit_at_once
        self._token = OwnToken(settings)
        self._api = ApiClient(settings.api_url, settings.job_id, self._token, settings.ca_file)
        self._outbox = Outbox(self._api)
        self._beats = Heartbeats(self._api, self._outbox)
        self._recorder = SeriesRecorder()
        self._over = asyncio.Event()
        self._departed = asyncio.Event()
        self._code = 0
        self._api_trouble = ""
        self._is_wanted = True
        self._patience = PatientCalls(self._outbox)
        self.machine: JobMachine | None = None
        self._dispatcher: TaskDispatcher
        self._processes: Processes
        self._servers: ServerOperations
        self._members: GroupControl | None = None
        self._group: asyncio.TaskGroup
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False

    async def run(self) -> int:
        """Runs the job; returns the exit code."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._api.close)
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._spawn("life", self._live(stack))
                self._spawn("stop", self._stop_on_signal())
                try:
                    await self._over.wait()
                finally:
                    self._ending = True
                    await self._end_tasks()
        return self._code

    async def _end_tasks(self) -> None:
        """Cancels all tasks until they have ended: what is awaited may lose a cancellation."""
        remaining = set(self._tasks)
        while remaining:
            for task in remaining:
                task.cancel()
            _, remaining = await asyncio.wait(remaining, timeout=_CANCEL_AGAIN_S)

    # -- the beginning ---------------------------------------------------------------------------------------------

    async def _live(self, stack: contextlib.AsyncExitStack) -> None:
        startup = Startup(self._settings, self._api, self._patience)
        lease = await startup.lease()
        failpoint("master.after_job_lease")
        if lease.state.terminal:
            self._end(0)
            return
        self._spawn("heartbeats to the api", self._heartbeats())
        self._spawn("outbox", self._outbox.run())
        queue = self._make_queue(lease.epoch)
        stack.push_async_callback(queue.close)
        files.confine(lease.reach)
        code = await startup.find_code(lease)
        self._processes = Processes(self._settings, lease.spec, self._launcher, self._tell, code.framework)
        chooser = StrategyChooser(
            self._settings, self._api, self._outbox, self._patience, self._processes, lambda: self._is_wanted
        )
        choice = await chooser.choose(lease, code)
        failpoint("master.after_strategy")
        code = await startup.keep_checkpoint(code, choice.applied_to(lease.spec))
        contents = await self._patience.until_works("the task queue", queue.load, "queue")
        pending_posts = PendingPosts(
            await self._patience.until_works("the task queue", queue.kept, "queue"), time.time
        )
        failpoint("master.after_queue_load")
        processes = await self._patience.until_works("the launcher", self._processes.present, "launcher")
        setup = startup.setup(lease, code, contents, processes, choice).with_published(pending_posts.evaluations())
        await self._serve(stack, setup, queue, code, lease.reach, pending_posts)

    async def _serve(
        self,
        stack: contextlib.AsyncExitStack,
        setup: Setup,
        queue: TaskQueue,
        code: ResolvedCode,
        reach: PathPolicy | None,
        pending_posts: PendingPosts,
    ) -> None:
        settings, spec = self._settings, setup.spec
        limits = self._limits or Limits(recovery_s=settings.recovery_s, stuck_s=float(spec.progress_timeout_s))
        machine = JobMachine(setup, limits)
        servers = spec.num_ps if spec.has_servers else 0
        addresses = [self._processes.address(Role.PS, index) for index in range(servers)]
        root = spec.checkpoint_dir or settings.job_dir / "checkpoints"
        checkpoints = CheckpointDirectory(root, settings.job_id, reach)
        if not spec.checkpoint_dir:
            await asyncio.to_thread(checkpoints.sweep, {str(m["directory"]) for m in setup.manifests})
        self._dispatcher = TaskDispatcher(
            machine, queue, self._pass_on, time.monotonic, self._fence, pending_posts, self._post
        )
        self._outbox.posted = self._dispatcher.posted
        for post in pending_posts.left():  # before anything that this master decides
            self._post(post)
        stack.push_async_callback(self._dispatcher.close, _LAST_CHANGES_S)
        group_service = GroupService(self._dispatcher) if spec.by_group else None
        if group_service is not None:
            # The agent makes this folder for workers that may write in folders of their own only.
            work = settings.job_dir / "work"
            confined = work.is_dir() and not spec.checkpoint_dir
            handed_in = HandedInShares(work) if confined else None
            self._members = GroupControl(machine, group_service, self._tell, settings.job_id, handed_in)
        holder: ModelHolder = ReadOnlyHolder(machine)
        if self._members is not None:
            holder = self._members
        elif servers:
            holder = ServerControl(addresses, self._token)
        stack.push_async_callback(holder.close)
        self._servers = ServerOperations(
            machine,
            holder,
            checkpoints,
            self._api,
            self._tell,
            self._provenance(spec),
        )
        servicer = MasterServicer(
            self._dispatcher,
            settings.job_id,
            settings.job_secret,
            str(code.zoo),
            str(settings.job_dir),
            addresses,
            group_service,
        )
        server = make_server(master_pb2.DESCRIPTOR.services_by_name["Master"], servicer, servicer.authenticate)
        await self._dispatcher.tell(ev.Started())
        problem = code.problem
        if problem is not None:
            trace = problem.traceback if isinstance(problem, UserCodeError) else ""
            await self._dispatcher.tell(ev.JobFailed(problem.message, problem.fix, trace, problem.code))
        self.machine = machine
        address = listen(server, settings.listen)
        stack.push_async_callback(server.stop, _SERVER_GRACE_S)
        failpoint("master.before_serving")
        await server.start()
        failpoint("master.after_serving")
        _log.info("serving", address=address, epoch=setup.epoch, state=str(setup.state))
        self._spawn("processes", self._processes.run())
        self._spawn("news of processes", self._processes.watch())
        self._spawn("PS operations", self._servers.run())
        self._spawn("checkpoints", self._servers.run_saves())
        self._spawn("PS status", self._servers.poll())
        self._spawn("clock", self._clock())
        self._spawn("reaper", self._reaper())
        self._spawn("queue repair", self._repairs())
        if group_service is not None and self._members is not None:
            self._spawn("group", group_service.watch())
            self._spawn("life of the group", self._members.run())

    def _provenance(self, spec: JobSpec) -> Provenance:
        return {
            "job_id": self._settings.job_id,
            "model_def": spec.model_def,
            "model_params": spec.model_params,
            "code": spec.model_bundle or spec.model_zoo,
        }

    # -- what goes on ----------------------------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        while True:
            machine = self.machine
            try:
                desired_state = await self._report(machine)
            except UnavailableError as error:
                if not self._api_trouble:
                    _log.warning("the api is away", error=error.message)
                self._api_trouble = error.message
            except FencedError:
                raise
            except ElasticDLError as error:
                _log.error("the api refused a heartbeat", error=error.message)
            else:
                self._api_trouble = ""
                self._is_wanted = desired_state.desired == "run"
                if machine is not None:
                    await self._dispatcher.tell(ev.Directed(desired_state.desired, desired_state.target_workers))
            await asyncio.sleep(_HEARTBEAT_S)

    async def _report(self, machine: JobMachine | None, *, last: bool = False) -> DesiredState:
        """Sends a heartbeat with all that is to be told; what did not get through is told again.

        Args:
            machine: the job; None before it is known.
            last: whether nothing may be left for the next one.
        """
        if machine is None:
            # A master that has nothing to tell yet leaves what the last one told.
            begins = {"degraded": self._trouble()} if self._trouble() else {}
            return await self._api.heartbeat(begins, [])
        status = status_of(machine, self._trouble())
        target = machine.supervisor.target
        meters.show_all("job", partial(meters_of, status, target, machine.conditions.contradictions))
        self._recorder.record(time.time(), numbers_of(status, machine.supervisor.target))
        (losses, numbers), rows = self._outbox.take_losses(), self._recorder.take(everything=last)
        try:
            desired_state = await self._beats.send(status, losses, rows)
        except ElasticDLError:
            self._outbox.give_back_losses(losses, numbers)
            whole = tuple(row for row in rows if not row.tier and not last)
            self._recorder.give_back(row for row in rows if row not in whole)
            if whole:  # the next master could not measure them again
                self._post(await self._dispatcher.keep(do.PostSeries(whole)))
            raise
        await self._outbox.note_posted(numbers)
        return desired_state

    def _trouble(self) -> str:
        if self._api_trouble:
            return f"the api is away: {self._api_trouble}"
        return self._patience.waiting_for

    async def _clock(self) -> None:
        while True:
            await self._dispatcher.tell(ev.Tick())
            await asyncio.sleep(_TICK_S)

    async def _reaper(self) -> None:
        while True:
            await asyncio.sleep(_REAP_S)
            await self._dispatcher.reap()
            await self._dispatcher.watch()

    async def _repairs(self) -> None:
        while True:
            await self._dispatcher.trouble.wait()
            try:
                await self._dispatcher.repair()
            except UnavailableError:
                await asyncio.sleep(_REAP_S)

    async def _list_shards(self) -> None:
        machine = self._dispatcher.machine
        spec, plans = machine.spec, machine.plans
        try:
            # All are opened before the first is listed, which work begins with.
            readers = await open_readers(spec, {purpose: plans.data_of(purpose) for purpose in plans.to_list()})
            plans.columns = columns_of(readers[plans.main_type])
            for purpose, reader in readers.items():
                plan = plans.of(purpose)
                if plan is None or plan.listed:
                    continue
                async for piece in list_shards(reader):
                    failpoint("master.after_listing")
                    await self._dispatcher.tell(
                        ev.ShardsListed(
                            purpose, piece.shards, piece.last, piece.damaged, piece.fingerprints, piece.grain
                        )
                    )
        except FencedError:
            raise
        except ElasticDLError as error:
            await self._dispatcher.tell(ev.JobFailed(error.message, error.fix, kind=error.code))
        except Exception as error:
            _log.exception("listing the shards failed")
            await self._dispatcher.tell(ev.JobFailed(f"cannot list the data: {error}", "check the data", kind="data"))

    # -- instructions ----------------------------------------------------------------------------------------------

    async def _tell(self, event: ev.Event) -> None:
        await self._dispatcher.tell(event)

    def _pass_on(self, instruction: do.Instruction) -> None:
        api, outbox = self._api, self._outbox
        match instruction:
            case do.LaunchServer() | do.TerminateServer() | do.LoseGroup() if self._members is not None:
                self._members.carry_out(instruction)
            case do.LaunchWorker() | do.LaunchServer() | do.TerminateWorker() | do.TerminateServer():
                self._processes.carry_out(instruction)
            case do.RestoreServers() | do.Pin() | do.Unpin() | do.FlushRound() | do.Save() | do.ReadTallies():
                self._servers.carry_out(instruction)
            case do.Prune(manifest):
                outbox.post("prune", lambda: self._servers.prune(manifest))
            case do.MarkDone(tasks, accounts):
                outbox.mark_done(
                    [str(task) for task in tasks], {str(t): one.to_json() for t, one in accounts.items()}
                )
            case do.ForgetTasks(tasks):
                outbox.post("forgetting", partial(self._dispatcher.forget, tasks))  # after their done-marks
            case do.PostLiving(processes):
                outbox.add_living([dict(zip(_PROCESS_KEY, one, strict=True)) for one in processes])
            case do.PutPlan(plan):
                outbox.post("plan", lambda: api.put_plan(plan))
            case do.SetState():
                outbox.post("state", lambda: self._set_state(instruction))
            case do.ListShards():
                self._spawn("listing", self._list_shards())
            case do.Depart():
                self._departed.set()
            case do.Finish():
                self._spawn("finish", self._finish())
            case _:
                raise TypeError(f"nobody carries out {instruction}")

    def _post(self, post: Post) -> None:
        api, outbox, number = self._api, self._outbox, post.number
        match post.what:
            case do.PostSeries(rows):
                outbox.post("series", lambda: api.heartbeat({}, [], rows), number)
            case do.PostLosses(losses):
                outbox.add_losses(losses, post.at, number)
            case do.PostEvent(kind, message, detail):
                _log.info(message, event_kind=kind)
                outbox.add_event(kind, message, dict(detail), number)
            case do.PostLife():
                outbox.add_life(dataclasses.asdict(post.what), post.at, number)
            case do.PostEvaluation(count, version, epoch, metrics):
                outbox.post("evaluation", lambda: api.publish_evaluation(count, version, epoch, metrics), number)
            case do.PostArtifact(name, path, size, sha256):
                where = locate(name, path, self._settings.job_dir / "artifacts", self._dispatcher.machine.spec.output)
                outbox.post("artifact", lambda: api.publish_artifact(*where, size, sha256), number)

    async def _set_state(self, instruction: do.SetState) -> None:
        detail = dict(instruction.detail)
        if instruction.crashed:
            index = int(instruction.crashed.partition("-")[2].partition(".")[0])
            output = await self._processes.last_output(index)
            detail.setdefault("traceback", output)
        _log.info("state", to=str(instruction.to), reason=instruction.reason)
        if instruction.to is not JobState.RUNNING:
            # The last word on progress comes before the state after which nobody listens.
            await self._report(self._dispatcher.machine, last=True)
        failpoint("master.before_state")
        await self._api.post_state(str(instruction.to), instruction.reason, detail)
        failpoint("master.after_state")

    async def _finish(self) -> None:
        await self._outbox.flushed()
        decision = self._dispatcher.machine.lifecycle.decision
        if decision is not None and decision.to is not None and decision.to.terminal:
            await asyncio.to_thread(remove_kept, self._settings.job_dir)
        failpoint("master.before_queue_discard")
        with contextlib.suppress(UnavailableError):
            await self._dispatcher.discard()
        self._end(0)

    # -- the end ---------------------------------------------------------------------------------------------------

    async def _stop_on_signal(self) -> None:
        await self._stop.wait()
        if self.machine is not None and await self._is_going_down():
            _log.info("told to stop, with all processes; the job is saved")
            with contextlib.suppress(TimeoutError):
                await within(self._depart(), _SAVE_S)
        else:
            _log.info("told to stop; the job stays as it is")
        with contextlib.suppress(TimeoutError):
            await within(self._outbox.flushed(), _LAST_WORDS_S)
        self._end(0)

    async def _is_going_down(self) -> bool:
        """Whether everything ends with this master. If not, the next one finds workers and PS as they are."""
        try:
            return (await self._launcher.capacity()).closing
        except ElasticDLError as error:
            _log.warning("the launcher does not say why", error=error.message)
            return False

    async def _depart(self) -> None:
        await self._dispatcher.tell(ev.GoingDown())
        await self._departed.wait()

    def _fence(self, error: FencedError) -> None:
        """A newer master took over: touch nothing more, not even the socket, which is its by now."""
        _log.error("fenced", reason=error.message)
        self._quit_at_once(EXIT_FENCED)
        self._end(EXIT_FENCED)

    def _end(self, code: int) -> None:
        self._code = code
        self._over.set()

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if self._ending:
            # Not everything that is awaited passes a cancellation on, so who comes here may not know of the end yet.
            work.close()
            raise asyncio.CancelledError
        self._tasks.append(self._group.create_task(self._fenced(work), name=name))

    async def _fenced(self, work: Awaitable[None]) -> None:
        try:
            await work
        except FencedError as error:
            self._fence(error)
