"""Backup and restore of a cluster: its database, its bundles and, if wanted, the files of its jobs."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from elasticdl_agent.cluster.component import Component, log_tail
from elasticdl_agent.cluster.postgres import EmbeddedPostgres
from elasticdl_agent.cluster.relocation import note_location
from elasticdl_agent.cluster.services import MIGRATE_S
from elasticdl_agent.processes.child import Child, Command
from elasticdl_agent.processes.environment import base_environment
from elasticdl_core.errors import ConflictError, UnavailableError
from elasticdl_core.installation import own_version
from elasticdl_runtime.backup_files import BackupManifest, BackupWriter, extract, read_manifest
from elasticdl_runtime.cluster.paths import KNOWN_FILES, DataDirectory
from elasticdl_runtime.cluster.secrets import derive, ensure_secret_file
from elasticdl_runtime.cluster.state import ClusterState, DataLock
from elasticdl_runtime.database.dump import DumpedTable, dump_rows, empty_schema, load_rows, read_contents
from elasticdl_runtime.lifecycle import within

JOB_FOLDERS = ("checkpoints", "artifacts")
"""What of a job's files is worth keeping."""
_OLDER_FIX = "restore it with the version of ElasticDL that made it, or a newer one"
Tell = Callable[[str], None]


async def back_up(target: Path, directory: DataDirectory, database_url: str, *, files: bool, tell: Tell) -> None:
    """Writes a backup of a cluster, which may run meanwhile.

    Args:
        target: the backup.
        directory: the data directory.
        database_url: of a Postgres of the user's own; empty for the embedded one.
        files: whether to keep the jobs' checkpoints and artifacts, too.
        tell: is told what was done.

    Raises:
        ConflictError: there is no cluster.
        UnavailableError: its database does not answer.
    """
    writer = await asyncio.to_thread(BackupWriter, target)
    try:
        async with _database(directory, database_url) as url:
            with tempfile.TemporaryDirectory(prefix=".backup-", dir=target.parent) as folder:
                dumped = await dump_rows(url, Path(folder))
                for table in dumped.tables:
                    await asyncio.to_thread(writer.add_file, f"tables/{table.name}", table.file)
            # Files after rows: what the rows name was complete before, and what is pruned meanwhile is left out.
            await asyncio.to_thread(writer.add_tree, directory.root / "bundles", "bundles")
            if files:
                await asyncio.to_thread(_add_jobs, writer, directory.root / "jobs")
        tables = [{"name": one.name, "columns": list(one.columns), "rows": one.rows} for one in dumped.tables]
        manifest = BackupManifest(dumped.revision, own_version(), time.time(), tables, dict(dumped.sequences))
        manifest.root = str(directory.root)
        await asyncio.to_thread(writer.finish, manifest)
    finally:
        await asyncio.to_thread(writer.abandon)
    rows = {one.name: one.rows for one in dumped.tables}
    counts = f"{rows.get('jobs', 0)} jobs, {rows.get('events', 0)} events, {len(manifest.files)} files"
    tell(f"{target}: {counts}, schema {dumped.revision}; complete.")


async def restore(source: Path, directory: DataDirectory, database_url: str, *, force: bool, tell: Tell) -> None:
    """Puts a backup in the place of a cluster that does not run. The next ``up`` brings its schema up to date.

    Args:
        source: the backup.
        directory: the data directory; made if it is not there.
        database_url: of a Postgres of the user's own; empty for the embedded one.
        force: replace what is there.
        tell: is told what was done.

    Raises:
        InvalidInputError: the backup is damaged.
        ConflictError: the cluster runs, there is something already, or a newer version made the backup.
    """
    manifest = await asyncio.to_thread(read_manifest, source)
    with _locked(directory):
        async with _database(directory, database_url, locked=True) as url:
            revision, present = await read_contents(url)
            if present and not force:
                raise ConflictError(
                    f"the database holds {present} jobs and tokens already",
                    fix="restore into an empty data directory, or replace what is there with --force",
                )
            if revision:
                await _migrate(directory, url, "--knows", manifest.revision)
                await empty_schema(url)
            await _migrate(directory, url, "--to", manifest.revision)
            await _load(url, source, manifest)
        for name in ("bundles", "jobs"):
            count = await asyncio.to_thread(extract, source, name, directory.root / name)
            tell(f"{name}: {count} files")
        if manifest.root:
            note_location(directory, Path(manifest.root))
        # The database knows the files from now on, and none that are there already.
        (directory.root / KNOWN_FILES).unlink(missing_ok=True)
        # The queue is made anew from the database; an old one would be ahead of it.
        await asyncio.to_thread(shutil.rmtree, directory.redis, ignore_errors=True)
        directory.prepare()
    rows = {one["name"]: one["rows"] for one in manifest.tables}
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.created_at))
    tell(f"Restored {rows.get('jobs', 0)} jobs as of {made}. Run `elasticdl up`.")


def _add_jobs(writer: BackupWriter, jobs: Path) -> None:
    for job in sorted(jobs.iterdir()) if jobs.is_dir() else ():
        for name in JOB_FOLDERS:
            writer.add_tree(job / name, f"jobs/{job.name}/{name}")


async def _load(url: str, source: Path, manifest: BackupManifest) -> None:
    with tempfile.TemporaryDirectory(prefix="elasticdl-restore-") as folder:
        await asyncio.to_thread(extract, source, "tables", Path(folder))
        tables = [
            DumpedTable(one["name"], tuple(one["columns"]), one["rows"], Path(folder) / one["name"])
            for one in manifest.tables
        ]
        await load_rows(url, tables, manifest.sequences)


@contextmanager
def _locked(directory: DataDirectory) -> Iterator[None]:
    """Makes the data directory, and holds it and its run directory against clusters that would come up."""
    directory.prepare()
    with ExitStack() as stack:
        for path, what in ((directory.lock, "data"), (directory.run_lock, "run")):
            lock = DataLock(path)
            if not lock.acquire():
                raise ConflictError(
                    f"a cluster runs with the {what} directory {path.parent}",
                    fix="take it down first: `elasticdl down`",
                )
            stack.callback(lock.release)
        yield


@asynccontextmanager
async def _database(directory: DataDirectory, database_url: str, *, locked: bool = False) -> AsyncIterator[str]:
    """The URL of a database that answers: the user's own, that of the running cluster, or one started for this."""
    if database_url:
        yield database_url
        return
    state = None if locked else ClusterState.running(directory)
    if state is not None and "postgres" not in state.components:
        raise ConflictError(
            "the cluster uses a Postgres of its own",
            fix="give its address: --database-url, or ELASTICDL_DATABASE_URL",
        )
    if not locked and not directory.secret.exists():
        raise ConflictError(f"there is no cluster in {directory.root}", fix="give its folder with --data-dir")
    sockets = directory.postgres_sockets(directory.run if state is None else Path(state.run_dir))
    secret = ensure_secret_file(directory.secret)
    postgres = EmbeddedPostgres(directory.postgres, sockets, derive(secret, "postgres"), directory.log("postgres"))
    if state is not None:
        yield postgres.url
        return
    if not locked:
        with _locked(directory):
            async with _database(directory, "", locked=True) as url:
                yield url
        return
    component = Component(await asyncio.to_thread(postgres.prepare), lambda _state, _pid, _detail: None)
    try:
        await component.start()
        yield postgres.url
    finally:
        await component.stop()
        await asyncio.to_thread(shutil.rmtree, sockets, ignore_errors=True)
        postgres.release()


async def _migrate(directory: DataDirectory, url: str, *arguments: str) -> None:
    """Runs the migrations in a process of the api's: it has them."""
    log = directory.log("migrate")
    await asyncio.to_thread(log.write_text, "")
    argv = (sys.executable, "-P", "-m", "elasticdl_api", "migrate", *arguments)
    environment = {**base_environment(), "ELASTICDL_DATABASE_URL": url}
    child = await Child.start(Command(argv, environment, directory.root, log))
    try:
        code = await within(child.wait(), MIGRATE_S)
    except TimeoutError:
        code = await child.stop(grace_s=1.0)
    if code == 3:
        raise ConflictError("a newer version of ElasticDL made this backup, or one of before 0.2", fix=_OLDER_FIX)
    if code != 0:
        raise UnavailableError(
            f"the schema could not be made (code {code}); the end of the log:\n{log_tail(log)}", fix=f"see {log}"
        )
