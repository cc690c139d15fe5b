"""Stands for a process of a job: does what the variable STUB says.

The last word printed before waiting is always ``ready``, so that a test knows that signals are handled.
"""

import faulthandler
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def _wait() -> None:
    # signal.pause would wait for ever for a signal that came just before it.
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    print("ready", flush=True)
    while True:
        woken.recv(1)


def _leave(number: int, _frame: object) -> None:
    print("leaving", flush=True)
    sys.exit(0)


def _leave_after(gate: Path) -> None:
    print("saving", flush=True)
    while not gate.exists():
        time.sleep(0.01)
    sys.exit(0)


def _fill(where: str, mebibytes: str) -> None:
    """Takes disk or shared memory in one of the ways that there are, and waits."""
    folder = Path("/dev/shm" if where == "shared" else tempfile.gettempdir() if where == "run" else ".")
    if where == "deep":
        for _ in range(30):  # beyond what the path of a file may have
            Path("d" * 200).mkdir()
            os.chdir("d" * 200)
    name = folder / f"filled-{os.getpid()}"
    made = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    if where in ("shared", "nameless"):
        name.unlink()
    for _ in range(int(mebibytes)):
        os.write(made, os.urandom(1 << 20))
    print("filled", flush=True)
    _wait()


def _about_myself() -> dict[str, object]:
    """What a process can tell of how it was started."""
    with os.scandir("/proc/self/fd") as entries:
        descriptors = {int(entry.name): str(Path(entry.path).readlink()) for entry in entries}
    return {
        # The one that reads the list is gone by the time its link is looked at, or points at the list itself.
        "descriptors": {fd: where for fd, where in descriptors.items() if not where.endswith("/fd")},
        "random": random.random(),
        "temporary": tempfile.gettempdir(),
        "argv": sys.argv,
        "original": sys.orig_argv,
        "main": sys.modules["__main__"].__file__,
        "path": sys.path,
        "directory": str(Path.cwd()),
        "group": os.getpgid(0),
        "session": os.getsid(0),
        "parent": os.getppid(),
        "umask": os.umask(0o022),
        "signals": {number: str(signal.getsignal(number)) for number in signal.valid_signals()},
        "buffered": [sys.stdout.write_through, sys.stderr.write_through],
        "encoding": [sys.stdout.encoding, sys.stdout.errors],
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "collects": gc.isenabled(),
        "faults": faulthandler.is_enabled(),
    }


def main() -> int:
    command, _, argument = os.environ.get("STUB", "wait").partition(":")
    if command == "wait":
        _wait()
    elif command == "print":
        print(argument, flush=True)
    elif command == "exit":
        return int(argument)
    elif command == "environment":
        print(json.dumps(dict(os.environ)), flush=True)
    elif command == "self":
        print(json.dumps(_about_myself()), flush=True)
        _wait()
    elif command == "polite":
        signal.signal(signal.SIGTERM, _leave)
        _wait()
    elif command == "saves":
        # Told to leave, it stays until the file is there; the test says when all is saved.
        signal.signal(signal.SIGTERM, lambda number, frame: _leave_after(Path(argument)))
        _wait()
    elif command == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _wait()
    elif command == "signal":
        os.kill(os.getpid(), int(argument))
        time.sleep(60)
    elif command == "memory":
        kept = bytearray(os.urandom(1 << 20) * int(argument))
        print(len(kept), flush=True)
        _wait()
    elif command == "fill":
        _fill(*argument.split(":"))
    elif command == "gate":
        # Waits until the file is there; the test opens the gate.
        print("ready", flush=True)
        while not Path(argument).exists():
            time.sleep(0.01)
        print("through", flush=True)
    elif command == "family":
        # A child in its own session that would outlive everything, a grandchild, and this process.
        program = "import subprocess, time; subprocess.Popen(['sleep', '600']); print(flush=True); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE)
        subprocess.Popen(["sleep", "600"])
        assert child.stdout is not None
        child.stdout.readline()  # the grandchild is there
        if argument == "leave":
            return 0
        _wait()
    elif command == "flood":
        line = b"x" * 1023 + b"\n"
        for _ in range(int(argument)):
            os.write(1, line)
    else:
        raise SystemExit(f"unknown STUB {command!r}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
