"""The api over TLS: who verifies what, and no listening beyond loopback without it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import structlog
import trustme

from elasticdl import AsyncClient, Client
from elasticdl.client.retry import RetryPolicy
from elasticdl_api.web.renewal import keep_renewing
from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import InvalidInputError, UnauthenticatedError, UnavailableError
from elasticdl_core.ports.launcher import Role
from elasticdl_master.api import ApiClient
from elasticdl_runtime.lifecycle import end_all, within
from elasticdl_runtime.retry import Attempts
from elasticdl_runtime.tls import check_certificate, trust
from elasticdl_runtime.tokens import issue
from tests.integration.api.conftest import ADMIN
from tests.integration.api.test_process import _address, _environment, _process

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Files:
    """Certificates: of the api with its key, of the authority that made it, and of another one."""

    cert: Path
    key: Path
    ca: Path
    stranger: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    authority, stranger = trustme.CA(), trustme.CA()
    made = authority.issue_cert("127.0.0.1", "localhost")
    found = Files(folder / "cert.pem", folder / "key.pem", folder / "ca.pem", folder / "stranger.pem")
    for number, blob in enumerate(made.cert_chain_pems):
        blob.write_to_path(found.cert, append=number > 0)
    made.private_key_pem.write_to_path(found.key)
    authority.cert_pem.write_to_path(found.ca)
    stranger.cert_pem.write_to_path(found.stranger)
    return found


@pytest.fixture
async def url(empty_database_url: str, tmp_path: Path, files: Files) -> AsyncIterator[str]:
    tls = {"ELASTICDL_API_TLS_CERT": str(files.cert), "ELASTICDL_API_TLS_KEY": str(files.key)}
    environment = _environment(empty_database_url, tmp_path / "data", **tls)
    async with _process(environment) as process:
        yield (await within(_address(process), 60)).replace("http:", "https:")


async def test_clients_verify_the_api_and_send_no_token_to_another(
    url: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = RetryPolicy(attempts=1)
    for ca_file in (str(files.stranger), ""):
        monkeypatch.setenv("ELASTICDL_CA_FILE", ca_file)
        async with AsyncClient(url, ADMIN, retry=once) as client:
            with pytest.raises(UnavailableError, match="certificate"):
                await client.whoami()
    monkeypatch.setenv("ELASTICDL_CA_FILE", str(files.ca))
    async with AsyncClient(url, ADMIN, retry=once) as client:
        assert (await client.whoami())["user"] == "admin"
    with Client(url, ADMIN, retry=once) as blocking:
        assert blocking.whoami()["scope"] == "admin"
    async with httpx.AsyncClient(verify=trust(str(files.ca))) as http:
        answer = await http.post(f"{url}/session", headers={"Authorization": f"Bearer {ADMIN}"})
        assert answer.headers["set-cookie"].startswith("__Host-elasticdl_session=")
        assert answer.headers["strict-transport-security"] == "max-age=31536000"
        with pytest.raises(httpx.TransportError):
            await http.get(url.replace("https:", "http:") + "/healthz")


async def test_masters_verify_the_api(url: str, files: Files) -> None:
    token = issue("not the job's secret", "j-abc123", Role.MASTER, 0, 1)
    for ca_file, error in ((files.ca, UnauthenticatedError), (files.stranger, UnavailableError)):
        api = ApiClient(url, "j-abc123", lambda: token, str(ca_file))
        with pytest.raises(error):
            await api.lease("master-0.1")
        await api.close()


@pytest.mark.rotates(turns=3)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
async def test_the_api_does_not_listen_beyond_loopback_in_the_open(tmp_path: Path, host: str) -> None:
    environment = _environment("postgresql://u:p@127.0.0.1:1/x", tmp_path / "data", ELASTICDL_API_HOST=host)
    async with _process(environment) as process:
        _, errors = await within(process.communicate(), 60)
    assert process.returncode == 64
    assert f"refusing to listen on {host} without TLS" in errors.decode()
    assert "ELASTICDL_API_PLAIN_HTTP=true" in errors.decode()


async def test_it_does_so_where_the_network_is_said_to_be_private(empty_database_url: str, tmp_path: Path) -> None:
    changes = {"ELASTICDL_API_HOST": "0.0.0.0", "ELASTICDL_API_PLAIN_HTTP": "true"}
    async with _process(_environment(empty_database_url, tmp_path / "data", **changes)) as process:
        url = await within(_address(process), 60)
        async with httpx.AsyncClient() as http:
            assert (await http.get(url.replace("0.0.0.0", "127.0.0.1") + "/healthz")).status_code == 200


async def test_half_of_a_certificate_is_refused_at_the_start(tmp_path: Path, files: Files) -> None:
    environment = _environment(
        "postgresql://u:p@127.0.0.1:1/x", tmp_path / "data", ELASTICDL_API_TLS_CERT=str(files.cert)
    )
    async with _process(environment) as process:
        _, errors = await within(process.communicate(), 60)
    assert process.returncode == 64 and "go together" in errors.decode()


def test_certificates_that_cannot_be_used_are_refused(tmp_path: Path, files: Files) -> None:
    check_certificate(files.cert, files.key)
    (tmp_path / "empty.pem").write_text("")
    for cert, key in ((files.ca, files.key), (files.cert, files.ca), (tmp_path / "none.pem", files.key)):
        with pytest.raises(InvalidInputError, match="cannot be used") as refused:
            check_certificate(cert, key)
        assert refused.value.fix
    for ca_file in (tmp_path / "empty.pem", tmp_path / "none.pem", files.key):
        with pytest.raises(InvalidInputError, match="cannot be used"):
            trust(str(ca_file))


async def test_a_renewed_certificate_is_shown_without_a_restart(url: str, files: Files) -> None:
    stranger = trustme.CA().issue_cert("127.0.0.1")
    before, key = files.cert.read_bytes(), files.key.read_bytes()
    port = int(url.rpartition(":")[2])
    shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
    try:
        files.cert.write_bytes(stranger.cert_chain_pems[0].bytes())  # not of this key: it is not taken
        files.key.write_bytes(stranger.private_key_pem.bytes())
        async with asyncio.timeout(60):
            async for _ in Attempts(Backoff(0.2, 0.2)):
                now = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
                if now != shown:
                    break
        assert ssl.PEM_cert_to_DER_cert(now) == ssl.PEM_cert_to_DER_cert(stranger.cert_chain_pems[0].bytes().decode())
    finally:
        files.cert.write_bytes(before)
        files.key.write_bytes(key)


async def test_a_renewed_certificate_that_cannot_be_used_is_not_taken(files: Files, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(files.cert.read_bytes())
    key.write_bytes(files.key.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with structlog.testing.capture_logs() as logs:
        renewing = asyncio.create_task(keep_renewing(context, cert, key))
        async with asyncio.timeout(60):
            for number in range(600):
                if logs:
                    break
                cert.write_text(f"nonsense {number}")
                await asyncio.sleep(0.05)
        await end_all(renewing)
    assert "cannot be used; the one before stays" in logs[0]["event"]
