"""The data directory of a local cluster, and the run directory that goes with it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.home import expand_home

MAX_SOCKET_PATH = 107
"""Most bytes of a unix socket's path on Linux."""
_MOST_OF_TMPDIR = 24
"""Bytes of ``TMPDIR`` that leave room for the paths of jobs' sockets."""
_FIT_FOR_ADDRESSES = re.compile(r"/[\w/.+@~=-]*", re.ASCII)
"""Absolute paths that mean the same to gRPC, Redis and Postgres, which take addresses apart each in its own way."""
_UNFIT = "% ? # , quotes or letters beyond ASCII"
DATA_DIR_VARIABLE = "ELASTICDL_DATA_DIR"
RUN_DIR_VARIABLE = "ELASTICDL_RUN_DIR"
KNOWN_FILES = "known.json"
"""The file in which the directory counts how often its database was asked for it."""


def default_data_dir() -> Path:
    """``$ELASTICDL_DATA_DIR``, or ``~/.elasticdl``."""
    given = os.environ.get(DATA_DIR_VARIABLE)
    return expand_home(given or "~/.elasticdl").absolute()


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """Paths of a cluster's data.

    Attributes:
        root: the data directory; absolute, and where it really is: what is noted by its path would else be lost, or
            taken for another cluster's, when a link leads there.
    """

    root: Path

    def __post_init__(self) -> None:
        """Follows links, but none that leads nowhere: what is not mounted is not made."""
        with contextlib.suppress(OSError):
            if not any(one.is_symlink() and not one.exists() for one in (self.root, *self.root.parents)):
                object.__setattr__(self, "root", self.root.resolve())

    @property
    def token(self) -> Path:
        """The admin token of the API."""
        return self.root / "token"

    @property
    def secret(self) -> Path:
        """The cluster secret: jobs' secrets, passwords and the node token are derived from it."""
        return self.root / "secret"

    @property
    def state(self) -> Path:
        """The file that says what runs now, as JSON."""
        return self.root / "cluster.json"

    @property
    def location(self) -> Path:
        """The file that says where this directory lay when it was used last, as bytes of a path."""
        return self.root / "location"

    @property
    def lock(self) -> Path:
        """Locked by the supervisor for as long as it lives."""
        return self.root / "lock"

    @property
    def run_lock(self) -> Path:
        """Locked likewise: a run directory that was named may be named for other data directories, too."""
        return self.run / "lock"

    @property
    def postgres(self) -> Path:
        """The embedded Postgres' folder."""
        return self.root / "postgres"

    @property
    def redis(self) -> Path:
        """The embedded Redis' folder."""
        return self.root / "redis"

    @property
    def logs(self) -> Path:
        """Logs of services; those of jobs are with the jobs."""
        return self.root / "logs"

    def log(self, name: str) -> Path:
        """The log of one component."""
        return self.logs / f"{name}.log"

    @property
    def tls(self) -> Path:
        """The folder of certificates that were made for development."""
        return self.root / "tls"

    @property
    def key(self) -> str:
        """Eight hex digits that stand for this data directory where paths must be short."""
        return hashlib.sha256(os.fsencode(self.root.resolve())).hexdigest()[:8]

    @property
    def run(self) -> Path:
        """The run directory, for sockets: short, for this user alone, and gone after a restart of the machine."""
        given = os.environ.get(RUN_DIR_VARIABLE)
        return Path(given).absolute() if given else _temporary() / f"elasticdl-{os.getuid()}" / self.key

    def postgres_sockets(self, run: Path) -> Path:
        """The folder of the embedded Postgres' socket.

        It is in the run directory; or beside it where root runs Postgres as another user, who may not enter there.

        Args:
            run: the run directory of the cluster, which may have come up where ``TMPDIR`` was another.
        """
        if os.geteuid():
            return run / "postgres"
        usual = run.parent.name == f"elasticdl-{os.getuid()}"
        beside = (
            run.parent.with_name(f"elasticdl-pg-0-{self.key}") if usual else run.with_name(f"{run.name}-postgres")
        )
        longest = MAX_SOCKET_PATH - len("/.s.PGSQL.5432")
        return beside if len(os.fsencode(beside)) <= longest else Path(f"/tmp/elasticdl-pg-0-{self.key}")

    def prepare(self) -> None:
        """Makes the folders.

        Raises:
            InvalidInputError: they cannot be made, or are somebody else's.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.logs, self.redis, self.root / "jobs", self.root / "bundles"):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise InvalidInputError(
                f"the data directory {self.root} cannot be used: {error.strerror}",
                fix="give another one with --data-dir, or make it writable for you",
            ) from None
        if self.root.stat().st_uid != os.getuid():
            raise InvalidInputError(
                f"the data directory {self.root} belongs to another user", fix="give another one with --data-dir"
            )
        if RUN_DIR_VARIABLE not in os.environ:
            private_folder(self.run.parent)
        elif not _FIT_FOR_ADDRESSES.fullmatch(str(self.run)):
            raise InvalidInputError(
                f"{RUN_DIR_VARIABLE}={self.run} cannot hold sockets: their addresses take no spaces and no {_UNFIT}",
                fix="name a folder by letters of ASCII, digits and any of / . _ - +",
            )
        private_folder(self.run)


def _temporary() -> Path:
    """The folder for temporary files that the environment names, where it is fit for sockets and short; else /tmp."""
    given = os.environ.get("TMPDIR", "")
    fit = _FIT_FOR_ADDRESSES.fullmatch(given) is not None and len(given) <= _MOST_OF_TMPDIR
    return Path(given) if fit else Path("/tmp")


def private_folder(folder: Path, *, owner: int | None = None) -> None:
    """Makes a folder that only one user can enter.

    Args:
        folder: the folder; those above it exist or are made.
        owner: user id of its owner; ours by default. Only root can name another.

    Raises:
        InvalidInputError: it cannot be made, or is there and belongs to somebody else, is open to others, or is a
            link.
    """
    wanted = os.getuid() if owner is None else owner
    try:
        with contextlib.suppress(FileExistsError):  # a file, too: then the folder below cannot be made
            folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        if wanted != os.getuid():
            os.chown(folder, wanted, -1)
    except FileExistsError:
        pass
    except OSError as error:
        raise InvalidInputError(
            f"the folder {folder} cannot be made: {error.strerror}",
            fix=f"name a folder that can be written: --data-dir for data, TMPDIR or {RUN_DIR_VARIABLE} for sockets",
        ) from None
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != wanted or found.st_mode & 0o066:
        raise InvalidInputError(
            f"the folder {folder} belongs to another user, is a link, or is open to others",
            fix=f"remove it, or set {RUN_DIR_VARIABLE} to a folder of mode 0700 that is yours",
        )
