"""RPC under TLS: a real parameter server, who gets in and who does not, and certificates that are replaced."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from elasticdl_agent.processes.credentials import CredentialFiles
from elasticdl_core.errors import InvalidInputError, PermissionDeniedError, UnavailableError
from elasticdl_core.ports.launcher import ProcessId, Role
from elasticdl_proto.v1 import agent_pb2, ps_pb2
from elasticdl_runtime.authority import CertificateAuthority
from elasticdl_runtime.launcher.addresses import RpcTransport, agent_address, process_address
from elasticdl_runtime.lifecycle import within
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_runtime.rpc.credentials import RpcCredentials
from elasticdl_runtime.rpc.framing import Frame
from elasticdl_runtime.rpc.service import listen, make_server
from elasticdl_runtime.tokens import Claims, derive_job_secret, issue, verify

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="other systems answer to 127.0.0.1 alone"),
]
PS = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]
AGENT = agent_pb2.DESCRIPTOR.services_by_name["Agent"]
SECRET = "the secret of the cluster of these tests"
JOB = "j-abc123"
JOB_SECRET = derive_job_secret(SECRET, JOB)
WORKER = ProcessId(JOB, Role.WORKER, 3, 1)
WORKER_NAME = f"worker-3.{JOB}"
TOKEN = issue(JOB_SECRET, JOB, Role.WORKER, 3, 1)


def credentials(folder: Path, name: str, secret: str = SECRET, *, begin: datetime | None = None) -> RpcCredentials:
    """What an authority issues to a name, in a file."""
    return RpcCredentials(write(folder / f"{name}.pem", name, secret, begin=begin))


def write(path: Path, name: str, secret: str = SECRET, *, begin: datetime | None = None) -> Path:
    authority = CertificateAuthority.of_secret(secret)
    issued = authority.issue([name], timedelta(hours=1), begin=begin)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(issued.key + issued.pem + authority.pem)
    fresh.replace(path)
    return path


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[str]:
    """A parameter server of the job, as a process of its own; its address."""
    address = process_address(agent_address(tmp_path, RpcTransport.TLS), JOB, Role.PS, 0)
    environment = {
        "PATH": os.environ["PATH"],
        "ELASTICDL_JOB_ID": JOB,
        "ELASTICDL_JOB_SECRET": JOB_SECRET,
        "ELASTICDL_INDEX": "0",
        "ELASTICDL_NUM_PS": "1",
        "ELASTICDL_PS_KERNELS": "numpy",
        "ELASTICDL_LISTEN": address,
        "ELASTICDL_RPC_CREDENTIALS": str(write(tmp_path / "server.pem", f"ps-0.{JOB}")),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "elasticdl_ps"),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        while b"serving" not in (line := await process.stdout.readline()):
            assert line, "the server ended"
    rest = asyncio.create_task(process.stdout.read())
    try:
        yield address
    finally:
        process.terminate()
        await within(process.wait(), 60)
        await rest


async def ask(address: str, shown: RpcCredentials, token: str = TOKEN) -> Any:
    client = RpcClient(address, PS, token, shown)
    try:
        return await client.call("Status", ps_pb2.StatusRequest(), deadline_s=20)
    finally:
        await client.close()


async def test_who_shows_token_and_certificate_of_one_process_gets_in(server: str, tmp_path: Path) -> None:
    assert (await ask(server, credentials(tmp_path, WORKER_NAME))).initialized is False


async def test_a_token_beside_anothers_certificate_is_refused(server: str, tmp_path: Path) -> None:
    """Whoever has copied a token, in this job or in another, has no certificate for it."""
    for name in (f"worker-4.{JOB}", "worker-3.j-other1", f"ps-0.{JOB}", "node.elasticdl"):
        with pytest.raises(
            PermissionDeniedError, match=f"the certificate is for {name}, the token for {WORKER_NAME}"
        ):
            await ask(server, credentials(tmp_path, name))
    with pytest.raises(PermissionDeniedError, match="the token for worker-4"):
        await ask(server, credentials(tmp_path, WORKER_NAME), issue(JOB_SECRET, JOB, Role.WORKER, 4, 1))
    stream = RpcClient(server, PS, TOKEN, credentials(tmp_path, "worker-3.j-other1"))
    with pytest.raises(PermissionDeniedError, match="j-other1"):
        await stream.begin_in_stream("Steps", 1, Frame(b""), deadline_s=20)
    await stream.close()


async def test_certificates_of_another_authority_and_old_ones_are_refused(server: str, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        await ask(server, credentials(tmp_path, WORKER_NAME, "the secret of quite another cluster"))
    long_ago = datetime.now(UTC) - timedelta(hours=3)
    with pytest.raises(UnavailableError):
        await ask(server, credentials(tmp_path, WORKER_NAME, begin=long_ago))
    assert await ask(server, credentials(tmp_path, WORKER_NAME))


async def test_clients_without_a_certificate_and_without_tls_are_refused(server: str) -> None:
    place = server.rpartition("@")[2]
    authority = CertificateAuthority.of_secret(SECRET).pem
    metadata = (("authorization", f"Bearer {TOKEN}"),)
    names = (("grpc.ssl_target_name_override", f"ps-0.{JOB}"),)
    channels = [
        grpc.aio.secure_channel(place, grpc.ssl_channel_credentials(authority), options=names),
        grpc.aio.insecure_channel(place),
    ]
    for channel in channels:
        async with channel:
            method = channel.unary_unary("/elasticdl.v1.ParameterServer/Status")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await method(b"", timeout=20, metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


class _Impostor:
    """Answers as an agent, whoever it is."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        for method in AGENT.methods:
            if not hasattr(type(self), method.name):
                setattr(self, method.name, self.answer)

    async def answer(self, request: object, caller: object) -> object:
        return agent_pb2.CapacityResponse(slots=7)

    def take(self, token: str) -> Claims:
        self.tokens.append(token)
        return verify(JOB_SECRET, token)


async def test_a_server_that_is_not_who_was_asked_for_gets_no_token(tmp_path: Path) -> None:
    """A worker of the same job, with a certificate of its own, sits in its master's place."""
    impostor = _Impostor()
    shown = credentials(tmp_path, f"worker-4.{JOB}")
    server = make_server(AGENT, impostor, impostor.take)
    address = listen(server, f"tls://worker-4.{JOB}@127.0.0.1:0", shown)
    await server.start()
    own = credentials(tmp_path, WORKER_NAME)
    try:
        for name, secret in ((f"master-0.{JOB}", SECRET), (f"worker-4.{JOB}", "the secret of another cluster")):
            mine = own if secret == SECRET else credentials(tmp_path, WORKER_NAME, secret)
            client = RpcClient(address.replace(f"worker-4.{JOB}", name), AGENT, TOKEN, mine)
            with pytest.raises(UnavailableError):
                await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=5)
            await client.close()
        assert impostor.tokens == []
        client = RpcClient(address, AGENT, TOKEN, own)
        assert (await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=20)).slots == 7
        await client.close()
    finally:
        await server.stop(None)


class _Watched(_Impostor):
    """Has a stream that goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.release = asyncio.Event()

    async def Watch(self, request: object, caller: object) -> AsyncIterator[object]:
        yield agent_pb2.ProcessStatus(id=agent_pb2.ProcessId(index=1))
        await self.release.wait()


async def test_certificates_are_replaced_while_both_sides_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both began with certificates that have ended by now: nobody gets in, until their files are replaced."""
    monkeypatch.setattr("elasticdl_runtime.rpc.credentials._LOOK_S", 0.0)
    long_ago = datetime.now(UTC) - timedelta(hours=3)
    files = tmp_path / "server.pem", tmp_path / "client.pem"
    names = f"master-0.{JOB}", WORKER_NAME
    for file, name in zip(files, names, strict=True):
        write(file, name, begin=long_ago)
    shown, own = (RpcCredentials(file) for file in files)
    servicer = _Watched()
    server = make_server(AGENT, servicer, servicer.take)
    address = listen(server, f"tls://{names[0]}@127.0.0.1:0", shown)
    await server.start()
    client = RpcClient(address, AGENT, TOKEN, own)
    try:
        for step, file in enumerate((None, *files)):
            if file is not None:
                write(file, names[step - 1])
            call = client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=5 if step < 2 else 20)
            if step < 2:
                with pytest.raises(UnavailableError):
                    await call
            else:
                assert (await call).slots == 7
        watching = client.stream("Watch", agent_pb2.WatchRequest(), deadline_s=None)
        assert (await anext(watching)).id.index == 1
        write(files[1], names[1])
        assert (await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=20)).slots == 7
        following = asyncio.ensure_future(anext(watching))
        write(files[1], names[1])
        assert (await client.call("Capacity", agent_pb2.CapacityRequest(), deadline_s=20)).slots == 7
        with pytest.raises(UnavailableError, match="was closed"):
            await within(following, 60)  # on the connection before the last
    finally:
        servicer.release.set()
        await client.close()
        await server.stop(None)


async def test_nothing_goes_beyond_loopback_without_tls(tmp_path: Path) -> None:
    server = make_server(AGENT, _Impostor(), lambda token: token)
    for address in ("0.0.0.0:0", "192.0.2.7:443", "example.org:443", "[2001:db8::1]:443"):
        with pytest.raises(InvalidInputError, match="without TLS"):
            listen(server, address)
        with pytest.raises(InvalidInputError, match="without TLS"):
            RpcClient(address, AGENT, TOKEN)
    for malformed in ("tls://somebody", "tls://@host:1", "tls://a@host", "tls://A b@host:1"):
        with pytest.raises(InvalidInputError, match="no address under TLS"):
            RpcClient(malformed, AGENT, TOKEN)


async def test_credentials_that_cannot_be_used_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"tls://ps-0.{JOB}@127.0.0.1:1"
    with pytest.raises(InvalidInputError, match="this process has none"):
        RpcClient(address, PS, TOKEN)
    monkeypatch.setenv("ELASTICDL_RPC_CREDENTIALS", str(tmp_path / "none.pem"))
    with pytest.raises(InvalidInputError, match="cannot be read"):
        RpcClient(address, PS, TOKEN)
    (tmp_path / "half.pem").write_bytes(CertificateAuthority.of_secret(SECRET).pem)
    with pytest.raises(InvalidInputError, match="holds no key"):
        RpcCredentials(tmp_path / "half.pem")


def test_what_the_agent_issues_is_for_its_process_and_replaced_in_time(tmp_path: Path) -> None:
    (tmp_path / JOB).mkdir()
    files = CredentialFiles(tmp_path, SECRET, hours=1e-9)
    path = files.issue(WORKER, None)
    first = path.read_bytes()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert files.renew() == 1 and path.read_bytes() != first
    files.forget(WORKER)
    assert files.renew() == 0
    slow = CredentialFiles(tmp_path, SECRET)
    slow.issue(WORKER, None)
    assert slow.renew() == 0


def test_credentials_that_cannot_be_renewed_do_not_keep_others_from_it(tmp_path: Path) -> None:
    (tmp_path / JOB).mkdir()
    files = CredentialFiles(tmp_path, SECRET, hours=1e-9)
    stuck, other = files.issue(WORKER, None), files.issue(replace(WORKER, index=WORKER.index + 1), None)
    stuck.unlink()
    (stuck / "in the way").mkdir(parents=True)
    for _ in range(2):
        before = other.read_bytes()
        assert files.renew() == 1
        assert other.read_bytes() != before


def test_each_process_has_a_place_of_its_own() -> None:
    agent = agent_address(Path("/run/elasticdl"), RpcTransport.TLS)
    places = {
        process_address(agent, job, role, index).rpartition("@")[2]
        for job in ("j-a", "j-b")
        for role in Role
        for index in range(500)
    }
    assert len(places) == 2 * 500 * len(Role)
    assert all(place.startswith("127.") and not place.startswith("127.0.") for place in places)
