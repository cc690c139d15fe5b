"""Parameter servers of one's own: processes on this machine that live as long as whoever started them wants."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from elasticdl.extras import require
from elasticdl_core.errors import InvalidInputError, UnavailableError
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.launcher.addresses import agent_address, process_address
from elasticdl_worker.server_client.access import ServerAccess, guest_token

_JOB = "experiment"
_START_S = 120.0
"""Compiling the kernels for the first time takes most of it."""
_STOP_S = 10.0
_POLL_S = 0.02
_MOST = 64
_KERNELS = "ELASTICDL_PS_KERNELS"


class LocalServers:
    """Starts parameter servers, and waits until they listen.

    Args:
        num_ps: how many.

    Attributes:
        access: where they are, and what opens them.

    Raises:
        InvalidInputError: the number makes no sense, or what they need is not installed.
        UnavailableError: one of them does not start.
    """

    def __init__(self, num_ps: int) -> None:
        if not 1 <= num_ps <= _MOST:
            raise InvalidInputError(f"num_ps={num_ps} cannot work", fix=f"choose 1 to {_MOST} parameter servers")
        require("ParameterServerClient.local", "ps")
        # Short, because the path of a socket is: not below a TMPDIR of any length.
        self._folder = Path(tempfile.mkdtemp(prefix="elasticdl-ps-", dir="/tmp"))
        self._processes: list[subprocess.Popen[bytes]] = []
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _let_go(this()))
        self._finish = weakref.finalize(self, _stop, os.getpid(), self._processes, self._folder)
        secret = secrets.token_hex(32)
        (self._folder / _JOB).mkdir()
        agent = agent_address(self._folder)
        addresses = tuple(process_address(agent, _JOB, Role.PS, index) for index in range(num_ps))
        self.access = ServerAccess(addresses, guest_token(secret, _JOB))
        try:
            for index, address in enumerate(addresses):
                self._start(index, num_ps, secret, address)
            self._wait(addresses)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the processes and removes what they left; what they held is gone."""
        self._finish()

    def _start(self, index: int, num_ps: int, secret: str, address: str) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if _is_for_servers(name)},
            "ELASTICDL_JOB_ID": _JOB,
            "ELASTICDL_INDEX": str(index),
            "ELASTICDL_NUM_PS": str(num_ps),
            "ELASTICDL_JOB_SECRET": secret,
            "ELASTICDL_LISTEN": address,
            # However this program ends: they end with what they read of it, and the last one leaves nothing.
            "ELASTICDL_OWN_FOLDER": str(self._folder),
        }
        with self._log(index).open("wb") as log:
            command = [sys.executable, "-P", "-m", "elasticdl_ps"]
            self._processes.append(
                subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log)
            )

    def _wait(self, addresses: Sequence[str]) -> None:
        give_up = time.monotonic() + _START_S
        for index, address in enumerate(addresses):
            socket = Path(address.removeprefix("unix:"))
            while not socket.is_socket():
                code = self._processes[index].poll()
                if code is not None or time.monotonic() > give_up:
                    became = f"ended with exit code {code}" if code is not None else f"took over {_START_S:.0f} s"
                    last = self._log(index).read_text(errors="replace").strip().splitlines()[-3:]
                    raise UnavailableError(
                        f"the parameter server {index} {became}: {' '.join(last)}",
                        fix="see whether `python -m elasticdl_ps` can start here",
                    )
                time.sleep(_POLL_S)

    def _log(self, index: int) -> Path:
        return self._folder / f"ps-{index}.log"


def _is_for_servers(variable: str) -> bool:
    # What the program was told as a process of some job is not meant for these.
    return not variable.startswith("ELASTICDL_") or variable == _KERNELS


def _let_go(servers: LocalServers | None) -> None:
    """Holds servers no longer, in a forked process: they end with the program, not with the last of its children."""
    for process in servers._processes if servers is not None else ():
        if process.stdin is not None:
            process.stdin.close()


def _stop(owner: int, processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    if os.getpid() != owner:  # a forked process ends, and they are not its own
        return
    for process in processes:
        process.terminate()
    give_up = time.monotonic() + _STOP_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, give_up - time.monotonic()))
        process.kill()
        process.wait(_STOP_S)
        assert process.stdin is not None
        process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)
