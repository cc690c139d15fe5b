"""``elasticdl.ParameterServerClient`` against real parameter server processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from elasticdl import ParameterServerClient
from elasticdl_agent.processes.credentials import CredentialFiles
from elasticdl_core.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
)
from elasticdl_core.model import DenseKind, DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_core.ports.launcher import ProcessId, Role
from elasticdl_runtime.launcher.addresses import RpcTransport, agent_address, process_address
from elasticdl_runtime.rpc.credentials import RpcCredentials
from elasticdl_runtime.tokens import derive_job_secret, issue
from elasticdl_worker.parameters import StateChange
from elasticdl_worker.server_client.access import ServerAccess

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]
TABLES = [TableSpec("t", 2, InitializerSpec("ones"), group=1), TableSpec("closed", 1, input_dim=10)]
SGD = OptimizerSpec("torch.sgd", {"learning_rate": 1.0}, ({"learning_rate": 0.5},))


@pytest.fixture(scope="module")
def processes() -> Iterator[Any]:
    """Two servers for all tests that bring no model of their own."""
    with ParameterServerClient.local(num_ps=2, patience_s=30) as client:
        client.declare({"w": np.arange(6.0).reshape(2, 3), "b": 1.0}, TABLES, SGD)
        yield client


@pytest.fixture
def servers(processes: Any) -> Iterator[Any]:
    """A client of its own."""
    access: ServerAccess = processes._servers.access
    with ParameterServerClient(access.addresses, lambda: access.token, patience_s=30) as client:
        yield client


def test_what_is_pushed_is_pulled(servers: Any) -> None:
    before = servers.pull({"t": [5, 9, 5]})
    assert before.dense["w"].shape == (2, 3)
    assert before.rows["t"].shape == (3, 2)
    grads = np.array([[1, 2], [10, 20], [3, 4]])
    result = servers.push({"w": np.ones((2, 3)), "b": 2}, {"t": ([5, 9, 5], grads)})
    assert result.accepted
    after = servers.pull({"t": [9, 5]})
    np.testing.assert_allclose(after.dense["w"], before.dense["w"] - 1)
    np.testing.assert_allclose(after.dense["b"], before.dense["b"] - 2)
    np.testing.assert_allclose(after.rows["t"], before.rows["t"][[1, 0]] - 0.5 * np.array([[10, 20], [4, 6]]))
    assert not after.dense["w"].flags.writeable
    assert servers.pull(dense=False).dense == {}


def test_clients_with_one_token_do_not_take_each_others_pushes_for_repeats(processes: Any) -> None:
    access: ServerAccess = processes._servers.access
    clients = [ParameterServerClient(access.addresses, access.token, patience_s=30) for _ in range(3)]
    before = processes.pull().dense["b"]
    for client in [*clients, *reversed(clients)]:
        assert client.push({"b": 1.0}).accepted
    assert processes.pull().dense["b"] == before - 6
    for client in clients:
        client.close()


def test_a_client_that_cannot_be_made_leaves_nothing(processes: Any) -> None:
    access: ServerAccess = processes._servers.access

    def held() -> tuple[int, int]:
        threads = [thread for thread in threading.enumerate() if thread.name == "parameter-servers"]
        return len(threads), len(list(Path("/proc/self/fd").iterdir()))

    before = held()
    for _ in range(3):
        with pytest.raises(InvalidInputError, match="without TLS"):
            ParameterServerClient(["nowhere"], access.token)
    assert held() == before


def test_servers_end_with_the_program_that_started_them_however_it_ends(request: pytest.FixtureRequest) -> None:
    program = (
        "import os, signal\n"
        "from elasticdl import ParameterServerClient\n"
        "servers = ParameterServerClient.local(num_ps=2)._servers\n"
        "forked = os.fork() or signal.pause()\n"  # as a pool of processes has them
        "print(servers._folder, forked, *[process.pid for process in servers._processes], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as done:
        assert done.stdout is not None
        folder, forked, *pids = done.stdout.readline().split()
    request.addfinalizer(lambda: os.kill(int(forked), signal.SIGKILL))
    assert len(pids) == 2

    def left() -> list[str]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return [pid for pid in pids if psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE]
        return [path for path in [folder] if Path(path).exists()]

    for _ in range(6000):
        if not left():
            break
        time.sleep(0.01)
    assert not left()


def test_rates_go_with_a_push_one_for_each_group(servers: Any) -> None:
    before = servers.pull({"t": [77]})
    servers.push({"b": 1.0}, {"t": ([77], [[1, 1]])}, learning_rate=[0.0, 2.0])
    after = servers.pull({"t": [77]})
    assert after.dense["b"] == before.dense["b"]
    np.testing.assert_allclose(after.rows["t"], before.rows["t"] - 2)
    with pytest.raises(InvalidInputError, match="2 groups") as caught:
        servers.push({"b": 1.0}, learning_rate=0.1)
    assert caught.value.fix


def test_a_second_client_with_the_same_token_is_not_taken_for_the_first(processes: Any) -> None:
    access = processes._servers.access
    found = []
    for _ in range(2):
        with ParameterServerClient(access.addresses, access.token) as client:
            before = client.pull().dense["b"]
            assert client.push({"b": 1.0}).accepted
            found.append(float(before - client.pull().dense["b"]))
    assert found == [1.0, 1.0]


def test_the_model_is_known_to_who_did_not_declare_it(servers: Any) -> None:
    model = servers.model
    assert {spec.name: spec.shape for spec in model.dense} == {"w": (2, 3), "b": ()}
    assert list(model.tables) == sorted(TABLES, key=lambda table: table.name)
    assert (model.optimizer, model.mode) == (SGD, UpdateMode())


def test_declaring_again_goes_on_and_another_model_is_refused(servers: Any) -> None:
    version = servers.model.version
    assert not servers.declare({"w": np.zeros((2, 3)), "b": 0.0}, TABLES, SGD)
    assert servers.model.version == version
    with pytest.raises(ConflictError, match="other shapes"):
        servers.declare({"w": np.zeros(4)}, TABLES, SGD)
    assert servers.pull().dense["w"].shape == (2, 3)


def test_several_threads_may_use_one_client(servers: Any) -> None:
    before = servers.pull().dense["b"]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: servers.push({"b": 0.5}), range(20)))
    assert all(result.accepted for result in results)
    np.testing.assert_allclose(servers.pull().dense["b"], before - 10, rtol=1e-5)


BAD: dict[str, tuple[Any, str]] = {
    "unknown parameter": (lambda c: c.push({"x": 1.0}), "'x'"),
    "unknown table": (lambda c: c.push(rows={"x": ([1], [[1.0]])}), "'x'"),
    "unknown table in a pull": (lambda c: c.pull({"x": [1]}), "'x'"),
    "wrong shape": (lambda c: c.push({"w": np.zeros(6)}), "shape"),
    "too few rows": (lambda c: c.push(rows={"t": ([1, 2], [[1.0, 1.0]])}), "shape"),
    "rows of another length": (lambda c: c.push(rows={"t": ([1], [[1.0, 1.0, 1.0]])}), "shape"),
    "ids that are no integers": (lambda c: c.pull({"t": [1.5]}), "integers"),
    "ids in two dimensions": (lambda c: c.pull({"t": [[1]]}), "shape"),
    "ids beyond int64": (lambda c: c.pull({"t": np.array([2**63], np.uint64)}), "int64"),
    "an id outside of a closed table": (lambda c: c.pull({"closed": [10]}), "closed"),
    "the one number that is no id": (lambda c: c.push(rows={"t": ([-(2**63)], [[1.0, 1.0]])}), "out of range"),
    "an infinite row": (lambda c: c.push(rows={"t": ([1, 2], [[1.0, 1.0], [np.inf, 0.0]])}), "infinite"),
    "NaN": (lambda c: c.push({"b": float("nan")}), "NaN"),
    "a negative rate": (lambda c: c.push({"b": 1.0}, learning_rate=[-1.0, 0.0]), "learning rate"),
    "delay compensation": (lambda c: c.declare({"b": 1.0}, mode=UpdateMode(delay_compensation=0.1)), "delay"),
    "a specification without a value": (lambda c: c.declare(specs=[DenseSpec("q", (1,))]), "'q'"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_with_the_fix(servers: Any, case: str) -> None:
    act, word = BAD[case]
    version = servers.pull().version
    with pytest.raises(InvalidInputError, match=word) as caught:
        act(servers)
    assert caught.value.fix
    assert servers.pull().version == version


def test_no_model_wrong_tokens_and_closed_clients_are_named(tmp_path: Path) -> None:
    with ParameterServerClient.local() as client:
        for act in (client.pull, client.count_rows, lambda: client.push({"b": 1.0})):
            with pytest.raises(ConflictError, match="no model") as caught:
                act()
            assert caught.value.fix
        access = client._servers.access
        forged = issue("f" * 64, "experiment", Role.WORKER, 1, 0)
        with ParameterServerClient(access.addresses, forged) as stranger, pytest.raises(UnauthenticatedError):
            stranger.pull()
    with pytest.raises(ConflictError, match="closed"):
        client.pull()
    client.close()
    assert not Path(access.addresses[0].removeprefix("unix:")).parent.parent.exists()
    with pytest.raises(UnauthenticatedError):
        ParameterServerClient(access.addresses, "no token")
    with pytest.raises(InvalidInputError, match="address"):
        ParameterServerClient([], access.token)
    with (
        ParameterServerClient(access.addresses, access.token, patience_s=0.2) as late,
        pytest.raises(UnavailableError) as lost,
    ):
        late.pull()
    assert lost.value.fix


@pytest.mark.parametrize("count", [0, 65])
def test_a_number_of_servers_that_makes_no_sense_is_refused(count: int) -> None:
    with pytest.raises(InvalidInputError, match=f"num_ps={count}"):
        ParameterServerClient.local(count)


def test_a_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICDL_PS_KERNELS", "fortran")
    with pytest.raises(UnavailableError, match=r"exit code 64.*fortran"):
        ParameterServerClient.local()


def test_state_and_synchronous_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICDL_PS_KERNELS", "numpy")
    specs = [DenseSpec("count", (), "int64", DenseKind.STATE)]
    mode = UpdateMode(use_async=False, grads_to_wait=2)
    with ParameterServerClient.local(num_ps=2) as first:
        assert first.declare({"w": [1.0, 2.0], "count": 5}, optimizer=OptimizerSpec("sgd"), specs=specs, mode=mode)
        first.pull()
        for _ in range(2):
            assert first.push(
                {"w": [1.0, 1.0]}, learning_rate=0.5, state={"count": StateChange(1.0, np.int64(2))}
            ).accepted
        found = first.pull()
        assert found.version == 1
        assert found.dense["w"].tolist() == [0.5, 1.5]
        assert found.dense["count"] == 9
        assert first.push({"w": [1.0, 1.0]}, version=0).reason == "stale"


def test_the_owner_of_a_cluster_gets_to_the_servers_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "r"
    monkeypatch.setenv("ELASTICDL_RUN_DIR", str(run))
    (tmp_path / "secret").write_text("c" * 43)
    with pytest.raises(NotFoundError, match="job-7") as caught:
        ParameterServerClient.of_job("job-7", data_dir=tmp_path)
    assert caught.value.fix
    (run / "job-7").mkdir(parents=True)
    address = process_address(agent_address(run), "job-7", Role.PS, 0)
    token = issue(derive_job_secret("c" * 43, "job-7"), "job-7", Role.WORKER, 0, 0)
    with (
        a_server_of_a_job(address, "c" * 43),
        ParameterServerClient([address], token, patience_s=60) as worker,
    ):
        _check_guest(worker, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems answer to 127.0.0.1 alone")
def test_the_owner_of_a_cluster_that_speaks_tls_gets_in_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, secret = tmp_path / "r", "d" * 43
    monkeypatch.setenv("ELASTICDL_RUN_DIR", str(run))
    (tmp_path / "secret").write_text(secret)
    (run / "job-7").mkdir(parents=True)
    issued = CredentialFiles(run, secret)
    issued.issue_own()
    server, worker_id = ProcessId("job-7", Role.PS, 0, 0), ProcessId("job-7", Role.WORKER, 0, 0)
    address = process_address(agent_address(run, RpcTransport.TLS), "job-7", Role.PS, 0)
    token = issue(derive_job_secret(secret, "job-7"), "job-7", Role.WORKER, 0, 0)
    shown = RpcCredentials(issued.issue(worker_id, None))
    with (
        a_server_of_a_job(address, secret, ELASTICDL_RPC_CREDENTIALS=str(issued.issue(server, None))),
        ParameterServerClient([address], token, patience_s=60, credentials=shown) as worker,
    ):
        _check_guest(worker, tmp_path)
        (tmp_path / "secret").write_text("e" * 43)
        with pytest.raises((UnavailableError, NotFoundError)):
            ParameterServerClient.of_job("job-7", data_dir=tmp_path, patience_s=1).pull()


@contextlib.contextmanager
def a_server_of_a_job(address: str, secret: str, **environment: str) -> Iterator[None]:
    """A parameter server of job-7 of a cluster with a secret, as a process."""
    environment = {
        **os.environ,
        "ELASTICDL_JOB_ID": "job-7",
        "ELASTICDL_INDEX": "0",
        "ELASTICDL_NUM_PS": "1",
        "ELASTICDL_JOB_SECRET": derive_job_secret(secret, "job-7"),
        "ELASTICDL_LISTEN": address,
        "ELASTICDL_PS_KERNELS": "numpy",
        **environment,
    }
    with subprocess.Popen([sys.executable, "-m", "elasticdl_ps"], env=environment) as process:
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(20) == 0


def _check_guest(worker: Any, data_dir: Path) -> None:
    """A guest of the cluster's owner trains beside a worker."""
    worker.declare({"w": [1.0]}, optimizer=OptimizerSpec("sgd", {"learning_rate": 1.0}))
    with ParameterServerClient.of_job("job-7", data_dir=data_dir) as guest:
        assert guest.push({"w": [0.25]}).accepted
    assert worker.pull().dense["w"].tolist() == [0.75]


def run_python(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_learns() -> None:
    errors = [
        float(text) for text in re.findall(r"error ([\d.]+)", run_python("examples/parameter_servers/factorise.py"))
    ]
    assert len(errors) == 2
    assert errors[1] < errors[0] / 10


def test_the_document_runs_as_it_stands() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/parameter_server_client.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    run_python("-c", "\n".join(blocks))


def test_servers_end_with_the_program_that_forgot_to_close_them() -> None:
    code = (
        "from elasticdl import ParameterServerClient\n"
        "client = ParameterServerClient.local()\n"
        "print(client._servers._processes[0].pid)"
    )
    pid = int(run_python("-c", code))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
