"""The two commands on many kinds of machine, each made of this one: it works there, or says at once what it lacks.

`./dev machines` shows the table. A row makes its machine by namespaces, limits, capabilities, another user or another
environment, and is skipped with the reason where this machine cannot do so.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.e2e.local_cluster import EXAMPLES, ROOT, user_environment

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

_NAMELESS = 4_190_000
"""A user id that no system gives a name."""
_WORKS = """
set -e
cd /
elasticdl up --port 0 --slots 1 --detach
trap 'elasticdl down >/dev/null 2>&1' EXIT
elasticdl train --model_zoo {zoo} --model_def digits.forward --training_data {data}/train --minibatch_size 64
elasticdl down
"""
_UP = "cd / && exec elasticdl up --port 0 --slots 1 --detach"
_READ_ONLY = """
mount -t tmpfs -o mode=1777 tmpfs /mnt
mount -o remount,bind,ro /
export HOME=/mnt ELASTICDL_DATA_DIR=/mnt/data
"""
_AS_USER = '{open}\nexec setpriv --reuid {uid} --regid {uid} --clear-groups {more} "$@"'
_APART = ("unshare", "-m")


@dataclass(frozen=True)
class Machine:
    """A kind of machine.

    Attributes:
        name: for the table.
        script: a shell script that runs "$@" on such a machine; ``{scratch}`` is a folder of its own, and after
            ``{open}`` other users reach this interpreter.
        within: a command that the script runs in.
        lacks: a pattern of what `elasticdl up` says there; empty where a whole job works.
        says: a pattern of what is said where it works.
        env: variables of its own; None removes one.
    """

    name: str
    script: str = 'exec "$@"'
    within: tuple[str, ...] = ()
    lacks: str = ""
    says: str = ""
    env: tuple[tuple[str, str | None], ...] = ()


def _as_user(uid: int, more: str = "") -> str:
    return _AS_USER.replace("{uid}", str(uid)).replace("{more}", more)


MACHINES = (
    Machine("a home with spaces and letters beyond ASCII", env=(("HOME", "{scratch}/größe ein ë"), ("LC_ALL", "C"))),
    Machine("the C locale", env=(("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0"))),
    Machine("packages of another project on PYTHONPATH", env=(("PYTHONPATH", "{scratch}/odd"),)),
    Machine(
        "an environment full of other programs' settings",
        env=(
            *(("PGHOST", "db.example"), ("PGPORT", "1"), ("PGSERVICE", "other"), ("PGSSLMODE", "verify-full")),
            *((name, "http://127.0.0.1:9") for name in ("http_proxy", "HTTPS_PROXY", "ALL_PROXY", "grpc_proxy")),
            *(("SSL_CERT_FILE", "/nowhere/ca.pem"), ("SSL_CERT_DIR", "/nowhere"), ("TZ", "Mars/Olympus")),
            *(("KERAS_BACKEND", "torch"), ("TF_CONFIG", "{}"), ("WORLD_SIZE", "4"), ("RANK", "1")),
            *(("DATABASE_URL", "postgres://x"), ("REDIS_URL", "redis://y"), ("HOST", "0.0.0.0"), ("DEBUG", "1")),
            *(("PYTHONWARNINGS", "error::UserWarning"), ("LD_PRELOAD", "/nowhere/libx.so")),
        ),
    ),
    Machine(
        "a data directory of all signs, on a disk that runs no programs",
        "mount -t tmpfs -o noexec,mode=1777 tmpfs /mnt\nexport HOME=/mnt TMPDIR=/mnt\n"
        """export ELASTICDL_DATA_DIR="/mnt/it's \\"q\\" %d #1 [a]*? & \\\\n ë"\nexec "$@\"""",
        _APART,
    ),
    Machine("64 open files", 'ulimit -n 64\nexec "$@"'),
    Machine("no standard input, and files that are open to all", 'umask 000\nexec "$@" <&-'),
    Machine("loopback alone", 'ip link set lo up\nexec "$@"', ("unshare", "-n")),
    Machine("no network", within=("unshare", "-n"), lacks="nothing reaches 127.0.0.1 .*ip link set lo up"),
    Machine("the first process of a container", within=("unshare", "-pf", "--mount-proc")),
    Machine("a read-only root, and a TMPDIR", f'{_READ_ONLY}export TMPDIR=/mnt\nexec "$@"', _APART),
    Machine(
        "a read-only root, and a run directory", f'{_READ_ONLY}export ELASTICDL_RUN_DIR=/mnt/r\nexec "$@"', _APART
    ),
    Machine(
        "a read-only root without a place for sockets",
        f'{_READ_ONLY}exec "$@"',
        _APART,
        lacks=r"cannot be made: Read-only file system .* TMPDIR or ELASTICDL_RUN_DIR",
    ),
    Machine(
        "a disk of 20 MB",
        'mount -t tmpfs -o size=20m tmpfs /mnt\nexport ELASTICDL_DATA_DIR=/mnt/data\nexec "$@"',
        _APART,
        lacks="No space left on device .* correct the cause",
    ),
    Machine("an ordinary user without a home", _as_user(65534), _APART, env=(("HOME", None),)),
    Machine("an ordinary user without capabilities", _as_user(65534, "--bounding-set -all --no-new-privs"), _APART),
    Machine(
        "a user without a name",
        _as_user(_NAMELESS),
        _APART,
        lacks=f"user {_NAMELESS} has no name .*docker run --user NAME",
        env=(("HOME", None),),
    ),
    Machine(
        "40 threads",
        _as_user(65534).replace("exec setpriv", "exec prlimit --nproc=40 setpriv"),
        _APART,
        lacks="may have 40 processes and threads.* ulimit -u 4096",
    ),
    Machine(
        "root without capabilities",
        'exec setpriv --bounding-set -all --inh-caps -all "$@"',
        lacks="lacks the capabilities CHOWN, .* --cap-add SETUID",
    ),
    Machine(
        "an interpreter that other users do not reach",
        "mount -t tmpfs tmpfs /var/lib\nmkdir -m 700 {scratch}/closed {scratch}/closed/venv\n"
        "mount --bind {venv} {scratch}/closed/venv\nexport PATH={scratch}/closed/venv/bin:$PATH\n"
        '"$@"\necho "left: $(ls -A /var/lib)."',
        _APART,
        says=r"left: \.",
    ),
    Machine(
        "a control group of 900 MB",
        "trap 'rmdir {group}' EXIT\nmkdir {group}\necho 900000000 > {group}/{limit}\n"
        'sh -ec \'echo $$ > {group}/cgroup.procs; exec "$@"\' sh "$@"',
        says="0.8 GiB, the limit of this container or control group, for 1 slots",
    ),
)


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    """Digits that every user can read."""
    made = Path(tempfile.mkdtemp(prefix="edl-digits-"))
    made.chmod(0o755)
    command = [sys.executable, "-m", "elasticdl", "data", "generate", "digits", str(made)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def scratch() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="edl-machine-"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@functools.cache
def _opening() -> str:
    """Shell that lets other users reach this interpreter and this source, in a mount namespace of its own."""
    closed = {
        next((one for one in reversed(path.parents) if not one.stat().st_mode & 0o001), None): path
        for path in (Path(sys.base_prefix).resolve(), ROOT.resolve(), Path(sys.prefix).resolve())
    }
    lines = []
    for number, (folder, path) in enumerate(closed.items()):
        if folder is not None:
            kept = f"/mnt/kept-{number}"
            lines.append(
                f"mount -t tmpfs -o mode=755 tmpfs /mnt; mkdir {kept}; mount --bind {path} {kept}; "
                f"mount -t tmpfs -o mode=755 tmpfs {folder}; mkdir -p {path}; mount --bind {kept} {path};"
            )
    return " ".join(lines)


def _memory_group() -> tuple[str, str]:
    """A folder for a control group of memory, and the name of its limit; empty where no group can be made."""
    top = Path("/sys/fs/cgroup")
    name = f"edl-machine-{os.getpid()}"
    if os.access(top / "memory", os.W_OK) and (top / "memory" / "cgroup.procs").exists():
        return str(top / "memory" / name), "memory.limit_in_bytes"
    control = top / "cgroup.subtree_control"
    if os.access(control, os.W_OK) and "memory" in control.read_text():
        return str(top / name), "memory.max"
    return "", ""


def _why_not(machine: Machine) -> str:
    """The reason for which a machine cannot be made here; empty where it can."""
    words = [
        machine.within[:1],
        ("setpriv",) * ("setpriv" in machine.script),
        ("ip",) * ("ip link" in machine.script),
    ]
    missing = [name for word in words for name in word if shutil.which(name) is None]
    if missing:
        return f"this machine has no {' and no '.join(missing)}"
    if any(words) and os.geteuid() != 0:
        return "only root can make such a machine"
    if machine.within and subprocess.run([*machine.within, "true"], capture_output=True, check=False).returncode:
        return f"{' '.join(machine.within)} is not allowed here"
    if "{group}" in machine.script and not _memory_group()[0]:
        return "no control group of memory can be made here"
    return ""


@pytest.mark.parametrize("machine", [pytest.param(one, id=one.name) for one in MACHINES])
def test_a_job_runs_there_or_up_says_what_is_missing(machine: Machine, data: Path, scratch: Path) -> None:
    if reason := _why_not(machine):
        pytest.skip(reason)
    env = user_environment(scratch)
    for name, value in machine.env:
        env.pop(name, None)
        if value is not None:
            env[name] = value.replace("{scratch}", str(scratch))
    if env.get("HOME", "").startswith(str(scratch)):
        env["ELASTICDL_DATA_DIR"] = f"{env['HOME']}/.elasticdl"
        Path(env["HOME"]).mkdir()
    odd = scratch / "odd"
    odd.mkdir()
    for name in ("cffi", "yaml"):
        (odd / f"{name}.py").write_text("raise ImportError('this is another project')\n")
    group, limit = _memory_group()
    places = {"open": _opening(), "scratch": str(scratch), "venv": sys.prefix, "group": group, "limit": limit}
    script = machine.script
    for name, place in places.items():
        script = script.replace(f"{{{name}}}", place)
    does = _UP if machine.lacks else _WORKS.format(zoo=EXAMPLES / "digits" / "zoo", data=data)
    command = [*machine.within, "sh", "-ec", script, "sh", "sh", "-c", does]
    done = subprocess.run(command, env=env, cwd=scratch, capture_output=True, text=True, timeout=600, check=False)
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    flat = " ".join(said.split())
    if machine.lacks:
        assert done.returncode in {1, 2, 4}, said
        assert re.search(machine.lacks, flat) and "fix:" in flat, said
    else:
        assert done.returncode == 0 and "SUCCEEDED" in said, said[-4000:]
        assert re.search(machine.says, flat), said
    assert [one for one in psutil.process_iter() if _names(one, scratch)] == []


def _names(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in process.cmdline())
    except psutil.Error:
        return False
