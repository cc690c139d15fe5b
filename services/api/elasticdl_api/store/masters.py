"""Jobs as their masters see them: the lease with its epoch, reports, and the durable ledger.

Each write checks the epoch on the locked row of the job, in the transaction of the write: a master that was
replaced can change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Table,
    Text,
    and_,
    case,
    delete,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    text,
    type_coerce,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_api.store.ledger import completed_epochs
from elasticdl_api.store.processes import LifeReport, ProcessKey, begin_master, record_lives
from elasticdl_api.store.records import JobRecord
from elasticdl_api.store.series import write_rows
from elasticdl_api.web.problems import LeaseHeldError
from elasticdl_core.errors import ConflictError, FencedError
from elasticdl_core.job.life import (
    ACTIVE_STATES,
    LEGAL_TRANSITIONS,
    TERMINAL_STATES,
    Desired,
    JobState,
    desired_of_master,
    state_after_report,
)
from elasticdl_core.series import SeriesRow
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.transitions import add_event, transition
from elasticdl_runtime.failpoints import failpoint

LEASE_S = 8
_EXPIRY = text(f"now() + interval '{LEASE_S} seconds'")
_MEASURED = (
    *("throughput", "rescale_cost_s", "worker_seconds"),
    *("loss", "last_loss", "learning_rate", "metrics", "metrics_version"),
    *("training_metrics", "training_metrics_version"),
)
"""What a new master goes on measuring from, and shows until it hears of newer numbers."""
_BIGINT = 2**63 - 1


class MasterStore:
    """Jobs in Postgres, for the routes of masters.

    Every method may raise UnavailableError, and FencedError when the caller is not the job's master any more.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take_lease(self, job_id: str, *, holder: str, incarnation: int) -> dict[str, Any]:
        """Makes the caller the master of a job, under a new epoch, and tells it all that is durable.

        Args:
            job_id: the job.
            holder: names the caller; the same holder may lease again.
            incarnation: which launch of a master the caller is; a newer one takes over at once.

        Raises:
            LeaseHeldError: another holder of the same incarnation has it.
        """
        async with self._database.transaction() as connection:
            query = select(t.jobs, (t.jobs.c.master_lease_expires_at > func.now()).label("alive"))
            row = (
                (await connection.execute(query.where(t.jobs.c.id == job_id).with_for_update(key_share=True)))
                .mappings()
                .one_or_none()
            )
            _require_leasable(row, job_id, holder, incarnation)
            assert row is not None
            await connection.execute(
                update(t.jobs)
                .where(t.jobs.c.id == job_id)
                .values(
                    master_epoch=t.jobs.c.master_epoch + 1,
                    master_holder=holder,
                    master_lease_incarnation=incarnation,
                    master_lease_expires_at=_EXPIRY,
                )
            )
            job = await _job(connection, job_id)
            await begin_master(connection, job_id, incarnation)
            await add_event(
                connection,
                job_id,
                "master",
                f"master {incarnation} took the job",
                {"epoch": job.master_epoch, "incarnation": incarnation},
            )
            return {
                "epoch": job.master_epoch,
                "spec": job.spec,
                "state": job.state,
                "desired": desired_of_master(job.state, job.desired),
                "target_workers": job.target_workers,
                "bundle": job.spec.get("model_bundle", ""),
                "measured": {name: job.status[name] for name in _MEASURED if name in job.status},
                "strategy": job.status.get("strategy"),
                **await _durable(connection, job_id),
            }

    async def record_heartbeat(
        self,
        job_id: str,
        epoch: int,
        *,
        status: Mapping[str, Any],
        losses: Sequence[tuple[int, float, datetime | None]],
        series: Sequence[SeriesRow] = (),
    ) -> dict[str, Any]:
        """Extends the lease, records what the master says, answers what is wanted of it.

        A job that is further than ever before forgives the masters that were lost on the way. What is done a second
        time, after a return to a checkpoint, is no progress: a master that always dies at the same place is found.
        """
        active = t.in_states(ACTIVE_STATES)
        reached = _records_done(status)
        further = t.jobs.c.master_progress < reached
        given = type_coerce(dict(status), JSONB)
        query = (
            update(t.jobs)
            .where(t.jobs.c.id == job_id, t.jobs.c.master_epoch == epoch)
            .values(
                # A master that begins tells what it has trouble with; the progress is the last one's until then.
                status=given if "progress" in status else t.jobs.c.status.concat(given),
                master_lease_expires_at=case((active, _EXPIRY), else_=t.jobs.c.master_lease_expires_at),
                master_failures=case((further, 0), else_=t.jobs.c.master_failures),
                master_progress=func.greatest(t.jobs.c.master_progress, reached),
            )
            .returning(t.jobs.c.state, t.jobs.c.desired, t.jobs.c.target_workers)
        )
        async with self._database.transaction() as connection:
            row = (await connection.execute(query)).mappings().one_or_none()
            if row is None:
                raise _fenced(job_id)
            if losses:
                points = [
                    {"job_id": job_id, "model_version": version, "loss": loss, "at": at or datetime.now(UTC)}
                    for version, loss, at in losses
                ]
                await connection.execute(upsert(t.losses).on_conflict_do_nothing(), points)
            if series:
                await write_rows(connection, series, writer=epoch, job_id=job_id)
        return {
            "desired": desired_of_master(JobState(row["state"]), Desired(row["desired"])),
            "target_workers": row["target_workers"],
            "lease_s": LEASE_S,
        }

    async def report_state(
        self, job_id: str, epoch: int, *, to: JobState, reason: str, detail: Mapping[str, Any]
    ) -> JobState:
        """Records the state that the master reports; returns the state that the job is in now.

        Raises:
            ConflictError: the job cannot go there.
        """
        async with self._database.transaction() as connection:
            job = await _locked(connection, job_id, epoch)
            target = state_after_report(job.state, job.desired, to)
            if target is job.state:
                return target
            if target not in LEGAL_TRANSITIONS[job.state]:
                raise ConflictError(
                    f"job {job_id} is {job.state}: it cannot become {target}", fix="read the job's state, and stop"
                )
            if target is not to and job.desired.stopped_state is target:
                reason = job.desired.reason_to_stop  # What was asked meanwhile; the master began to stop for another.
            extra = dict(detail)
            if target is JobState.FAILED:
                extra["error"] = {
                    "message": str(detail.get("message") or reason),
                    "fix": str(detail.get("fix") or ""),
                    "traceback": str(detail.get("traceback") or ""),
                }
            await transition(connection, job_id, job.state, target, reason, extra)
            failpoint("api.before_state_commit")
            return target

    async def add_events(self, job_id: str, epoch: int, events: Iterable[Mapping[str, Any]]) -> None:
        """Records events."""
        async with self._database.transaction() as connection:
            await _locked(connection, job_id, epoch)
            for event in events:
                await add_event(connection, job_id, event["kind"], event["message"], event["detail"])

    async def record_lives(
        self,
        job_id: str,
        epoch: int,
        lives: Sequence[LifeReport],
        living: Sequence[ProcessKey] | None,
    ) -> None:
        """Records what became of processes; ``living`` are all PS and workers there are: the others are lost."""
        async with self._database.transaction() as connection:
            await _locked(connection, job_id, epoch)
            await record_lives(connection, job_id, lives, living)

    async def store_plan(self, job_id: str, epoch: int, plan: Mapping[str, Any]) -> None:
        """Records the plan of the job, once.

        Raises:
            ConflictError: there is another one.
        """
        async with self._database.transaction() as connection:
            await _locked(connection, job_id, epoch)
            await connection.execute(
                upsert(t.job_plans).values(job_id=job_id, plan=dict(plan)).on_conflict_do_nothing()
            )
            stored = await connection.execute(select(t.job_plans.c.plan).where(t.job_plans.c.job_id == job_id))
            if stored.scalar_one() != plan:
                raise ConflictError(f"job {job_id} has another plan", fix="go on with the plan that the lease gave")

    async def mark_done(
        self, job_id: str, epoch: int, tasks: Sequence[str], accounts: Mapping[str, Mapping[str, Any]]
    ) -> int:
        """Marks tasks as done, for good; marking again changes nothing. Returns how many were new.

        Args:
            job_id: the job.
            epoch: the caller's.
            tasks: what is done.
            accounts: what became of the records of marked tasks, where that is to be told; the last word counts.
        """
        async with self._database.transaction() as connection:
            await _locked(connection, job_id, epoch)
            names = select(literal(job_id), func.unnest(literal(list(dict.fromkeys(tasks)), ARRAY(Text))))
            query = (
                upsert(t.done_marks)
                .from_select(["job_id", "task"], names)
                .on_conflict_do_nothing()
                .returning(t.done_marks.c.task)
            )
            new = len((await connection.execute(query)).all())
            for task, account in accounts.items():
                mark = (t.done_marks.c.job_id == job_id) & (t.done_marks.c.task == task)
                await connection.execute(update(t.done_marks).where(mark).values(account=dict(account) or null()))
            failpoint("api.before_done_commit")
        failpoint("api.after_done_commit")
        return new

    async def commit_checkpoint(self, job_id: str, epoch: int, *, version: int, manifest: Mapping[str, Any]) -> None:
        """Commits a checkpoint: from now on it exists."""
        key, values = {"job_id": job_id, "version": version}, {"manifest": dict(manifest)}
        async with self._database.transaction() as connection:
            await _locked(connection, job_id, epoch)
            if await _put(connection, t.checkpoints, key, values, committed_at=func.now()):
                await add_event(
                    connection, job_id, "checkpoint", f"checkpoint of version {version}", {"version": version}
                )
            failpoint("api.before_checkpoint_commit")

    async def forget_checkpoint(self, job_id: str, epoch: int, *, version: int, directory: str = "") -> None:
        """Removes a checkpoint's manifest.

        Args:
            job_id: whose it is.
            epoch: of the master.
            version: of the model.
            directory: where its files are; one of that version elsewhere stays. Empty for whatever has that version.

        Raises:
            ConflictError: another job that is not over begins with the checkpoint in that directory.
        """
        mine = (t.checkpoints.c.job_id == job_id) & (t.checkpoints.c.version == version)
        if directory:
            mine &= t.checkpoints.c.manifest["directory"].astext == directory
        async with self._database.transaction() as connection:
            await _locked(connection, job_id, epoch)
            user = await _beginning_with(connection, directory, besides=job_id) if directory else None
            if user is not None:
                raise ConflictError(f"{user} begins with this checkpoint", fix="remove it when that job is over")
            await connection.execute(delete(t.checkpoints).where(mine))

    async def record_evaluation(self, job_id: str, epoch: int, values: Mapping[str, Any]) -> None:
        """Records an evaluation: ``number``, ``model_version``, ``training_epoch``, ``metrics``."""
        key = {"job_id": job_id, "number": values["number"]}
        async with self._database.transaction() as connection:
            await _locked(connection, job_id, epoch)
            if await _put(connection, t.evaluations, key, values):
                message = f"evaluation {values['number']} at version {values['model_version']}"
                await add_event(connection, job_id, "evaluation", message, dict(values))

    async def record_artifact(self, job_id: str, epoch: int, values: Mapping[str, Any]) -> None:
        """Records an artifact: ``name``, ``path``, ``size``, ``sha256``."""
        key = {"job_id": job_id, "name": values["name"]}
        async with self._database.transaction() as connection:
            await _locked(connection, job_id, epoch)
            if await _put(connection, t.artifacts, key, values):
                await add_event(connection, job_id, "artifact", f"artifact {values['name']}", dict(values))

    async def get(self, job_id: str) -> JobRecord:
        """The job."""
        async with self._database.transaction() as connection:
            return await _job(connection, job_id)


def _records_done(status: Mapping[str, Any]) -> int:
    progress = status.get("progress")
    done = progress.get("records_done") if isinstance(progress, Mapping) else None
    return done if isinstance(done, int) and not isinstance(done, bool) and 0 <= done <= _BIGINT else 0


def _require_leasable(row: Mapping[Any, Any] | None, job_id: str, holder: str, incarnation: int) -> None:
    if row is None:
        raise _fenced(job_id)
    if not JobState(row["state"]).active:
        raise FencedError(f"job {job_id} is {row['state']}: it needs no master", fix="exit; change nothing")
    if incarnation < row["master_lease_incarnation"]:
        raise _fenced(job_id)
    if row["alive"] and row["master_holder"] != holder and incarnation == row["master_lease_incarnation"]:
        raise LeaseHeldError(
            f"job {job_id} is held by {row['master_holder']}", fix="try again when its lease has expired"
        )


async def _locked(connection: AsyncConnection, job_id: str, epoch: int) -> JobRecord:
    query = select(t.jobs).where(t.jobs.c.id == job_id, t.jobs.c.master_epoch == epoch)
    row = (await connection.execute(query.with_for_update(key_share=True))).mappings().one_or_none()
    if row is None:
        raise _fenced(job_id)
    return JobRecord.of(row)


async def _put(
    connection: AsyncConnection, table: Table, key: Mapping[str, Any], values: Mapping[str, Any], **besides: Any
) -> bool:
    """Writes a row, over the one of that key if there is one; returns whether that changed anything.

    What is told twice, because the answer to the first was lost, is an event once.
    """
    row = upsert(table).values(**{**key, **values})
    columns = [name for name in values if name not in key]
    differs = or_(*(table.c[name].is_distinct_from(row.excluded[name]) for name in columns))
    changes = {name: row.excluded[name] for name in columns} | besides
    query = row.on_conflict_do_update(index_elements=list(key), set_=changes, where=differs)
    return (await connection.execute(query.returning(table.c.job_id))).first() is not None


async def _beginning_with(connection: AsyncConnection, directory: str, *, besides: str) -> str | None:
    """A job that is not over and begins with the checkpoint in a directory; of another namespace only that it is.

    One that begins with whatever is newest in the folder above may go back to any of those there until it has one of
    its own.
    """
    given = func.rtrim(t.jobs.c.spec["checkpoint_dir_for_init"].astext, "/")
    begun = t.jobs.c.state.in_([str(state) for state in ACTIVE_STATES])
    without_own = ~exists().where(t.checkpoints.c.job_id == t.jobs.c.id)
    named = or_(given == directory, and_(given == directory.rpartition("/")[0], begun, without_own))
    living = t.jobs.c.state.not_in([str(state) for state in TERMINAL_STATES])
    home = select(t.jobs.c.namespace).where(t.jobs.c.id == besides).scalar_subquery()
    query = select(t.jobs.c.id, (t.jobs.c.namespace == home).label("near"))
    found = await connection.execute(
        query.where(living, named, t.jobs.c.id != besides).order_by(text("near DESC")).limit(1)
    )
    row = found.one_or_none()
    return None if row is None else f"job {row.id}" if row.near else "a job of another namespace"


async def _job(connection: AsyncConnection, job_id: str) -> JobRecord:
    row = (await connection.execute(select(t.jobs).where(t.jobs.c.id == job_id))).mappings().one_or_none()
    if row is None:
        raise _fenced(job_id)
    return JobRecord.of(row)


async def _durable(connection: AsyncConnection, job_id: str) -> dict[str, Any]:
    async def column(query: Any) -> list[Any]:
        return list((await connection.execute(query)).scalars())

    plans = await column(select(t.job_plans.c.plan).where(t.job_plans.c.job_id == job_id))
    mine = t.done_marks.c.job_id == job_id
    done = await column(select(t.done_marks.c.task).where(mine))
    told = select(t.done_marks.c.task, t.done_marks.c.account).where(mine, t.done_marks.c.account.is_not(None))
    accounts = {row["task"]: row["account"] for row in (await connection.execute(told)).mappings()}
    plan = plans[0] if plans else None
    manifests = (
        select(t.checkpoints.c.manifest).where(t.checkpoints.c.job_id == job_id).order_by(t.checkpoints.c.version)
    )
    evaluations = (
        select(
            t.evaluations.c.number,
            t.evaluations.c.model_version,
            t.evaluations.c.training_epoch,
            t.evaluations.c.metrics,
        )
        .where(t.evaluations.c.job_id == job_id)
        .order_by(t.evaluations.c.number)
    )
    return {
        "ledger": {"plan": plan, "rounds": completed_epochs(plan, done), "done": done, "accounts": accounts},
        "checkpoints": await column(manifests),
        "evaluations": [dict(row) for row in (await connection.execute(evaluations)).mappings()],
    }


def _fenced(job_id: str) -> FencedError:
    return FencedError(f"the caller is not the master of job {job_id} any more", fix="exit; change nothing")
