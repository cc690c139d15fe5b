"""``elasticdl up``, ``down`` and ``status`` as a user runs them, with the real services."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from elasticdl_runtime.cluster import locate
from elasticdl_runtime.cluster.paths import DataDirectory
from tests.integration.cluster.conftest import processes_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


class User:
    """Somebody at a terminal."""

    def __init__(self, folder: Path) -> None:
        self.data = folder
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("ELASTICDL_")}
        self.environment |= {"PGHOST": "elsewhere", "PGPORT": "1", "PGSERVICE": "other", "PGSSLMODE": "verify-full"}
        self.environment["ELASTICDL_DATA_DIR"] = str(folder)

    def run(self, *words: str, expect: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "elasticdl", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=150,
            cwd="/",
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout + done.stderr

    def foreground(self) -> subprocess.Popen[str]:
        """`up` in the foreground; returns when it says that the cluster is up."""
        process = subprocess.Popen(
            [sys.executable, "-m", "elasticdl", "up", "--port", "0"],
            env={**self.environment, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            start_new_session=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("The cluster is up"):
                return process
        raise AssertionError(f"up ended with {process.wait()}")

    def status(self) -> dict:
        return json.loads(self.run("status", "--json"))


@pytest.fixture
def user(folder: Path) -> Iterator[User]:
    user = User(folder)
    yield user
    user.run("down")


def get(url: str, token: str) -> dict:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def nothing_is_left(folder: Path) -> None:
    left = processes_of(folder)
    psutil.wait_procs(left, timeout=20)
    assert processes_of(folder) == []
    directory = DataDirectory(folder)
    assert not directory.state.exists()
    assert not directory.run.exists()


def test_up_and_down_twice_with_the_same_data(user: User) -> None:
    first = user.run("up", "--port", "0", "--slots", "3", "--detach")
    assert "postgres" in first and "The cluster is up at http://127.0.0.1:" in first
    address = locate(user.data)
    assert address is not None and address.token not in repr(address)
    assert get(f"{address.api_url}/cluster", address.token)["slots"]["total"] == 3
    marked = user.data / "jobs" / "mark"
    marked.touch()
    again = user.run("up", "--port", "0", "--detach")
    assert f"up already: {address.api_url}" in again
    shown = user.run("status")
    assert "0 of 3 in use" in shown and "Postgres 18" in shown
    state = user.status()
    assert {item["state"] for item in state["components"].values()} == {"running"}
    assert state["disk"]["postgres"] > 1 << 20
    rows = _count(user, "alembic_version")
    assert rows == 1
    user.run("down")
    nothing_is_left(user.data)
    assert locate(user.data) is None
    assert "No cluster runs" in user.run("down")
    assert "No cluster runs" in user.run("status", expect=4)

    user.run("up", "--port", "0", "--detach")
    second = locate(user.data)
    assert second is not None and second.token == address.token
    assert _count(user, "alembic_version") == rows
    assert marked.exists()
    assert get(f"{second.api_url}/cluster", second.token)["slots"]["total"] >= 2


def _count(user: User, table: str) -> int:
    import asyncio

    import asyncpg

    from elasticdl_runtime.cluster.secrets import derive

    directory = DataDirectory(user.data)
    password = derive(directory.secret.read_text().strip(), "postgres")

    async def count() -> int:
        sockets = str(directory.postgres_sockets(directory.run))
        connection = await asyncpg.connect(
            user="elasticdl", password=password, database="elasticdl", host=sockets, timeout=10
        )
        try:
            return await connection.fetchval(f"SELECT count(*) FROM {table}", timeout=60)
        finally:
            await connection.close()

    return asyncio.run(count())


def test_a_component_that_dies_comes_back_and_ctrl_c_leaves_nothing(user: User) -> None:
    process = user.foreground()
    api = psutil.Process(user.status()["components"]["api"]["pid"])
    api.kill()
    api.wait(60)
    address = locate(user.data)
    assert address is not None
    _until_it_answers(f"{address.api_url}/readyz")
    assert user.status()["components"]["api"]["restarts"] == 1
    assert len(processes_of(user.data)) >= 5
    _ends_in_order(process, signal.SIGINT)
    nothing_is_left(user.data)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_a_foreground_up_as_well(user: User, number: signal.Signals) -> None:
    _ends_in_order(user.foreground(), number)
    nothing_is_left(user.data)


def _ends_in_order(process: subprocess.Popen[str], number: signal.Signals) -> None:
    process.send_signal(number)
    rest, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    stopped = [line.split()[1] for line in rest.splitlines() if line.startswith("- ")]
    assert stopped == ["scheduler", "agent", "api", "redis", "postgres"]


def test_a_killed_supervisor_leaves_no_process_and_the_next_up_works(user: User) -> None:
    process = user.foreground()
    process.kill()
    process.communicate(timeout=60)
    left = processes_of(user.data)
    psutil.wait_procs(left, timeout=30)
    assert processes_of(user.data) == []
    assert locate(user.data) is None
    user.run("up", "--port", "0", "--detach")
    address = locate(user.data)
    assert address is not None
    get(f"{address.api_url}/cluster", address.token)


def _until_it_answers(url: str) -> None:
    program = """
import sys, time, urllib.request
while True:
    try:
        urllib.request.urlopen(sys.argv[1], timeout=30).read()
        break
    except OSError:
        time.sleep(0.05)
"""
    subprocess.run([sys.executable, "-c", program, url], check=True, timeout=90)


def test_a_cluster_ends_with_its_owner_however_that_ends(user: User) -> None:
    with subprocess.Popen(["sleep", "600"]) as owner:
        user.run("up", "--port", "0", "--owner-pid", str(owner.pid), "--detach")
        supervisor = psutil.Process(user.status()["pid"])
        owner.kill()
    supervisor.wait(60)
    nothing_is_left(user.data)


def test_a_port_that_is_taken_is_named(user: User) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = user.run("up", "--port", str(taken.getsockname()[1]), "--detach", expect=1)
    assert "--port 0" in said
    nothing_is_left(user.data)


def test_a_component_that_does_not_start_is_named_with_its_log(user: User) -> None:
    (user.data / "token").write_text("short")
    said = user.run("up", "--port", "0", "--detach", expect=4)
    assert "the admin token" in said and "too short" in said
    nothing_is_left(user.data)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--port", "70000"], "give 1 to 65535"),
        (["--slots", "0"], "1 to 1024"),
        (["--database-url", "mysql://x"], "postgresql://"),
        (["--redis-url", "http://x"], "redis://"),
        (["--data-dir", "/proc/nowhere"], "--data-dir"),
        (["--owner-pid", "4194305"], "$$ in a shell"),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_fix(user: User, words: list[str], fix: str) -> None:
    assert fix in user.run("up", *words, expect=2)


def test_ctrl_c_while_it_comes_up_leaves_nothing(user: User) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "elasticdl", "up", "--port", "0"],
        env={**user.environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("+ postgres"):
            break
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    assert rest.splitlines()[-1].startswith("- postgres")
    nothing_is_left(user.data)


def test_up_whose_words_nobody_takes_leaves_nothing(user: User) -> None:
    """It ended by the error, and the cluster came up behind it."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "elasticdl", "up", "--port", "0", "--detach"]
        done = subprocess.run(
            command, env=user.environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=150
        )
    assert done.returncode == 1 and "No space left on device" in done.stderr
    nothing_is_left(user.data)
