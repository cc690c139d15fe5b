"""``elasticdl up`` under TLS: with the user's own certificate, and what is refused before anything starts."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from elasticdl_runtime.cluster import locate
from elasticdl_runtime.tls import direct_opener

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


class Operator:
    """Somebody with a certificate of their own."""

    def __init__(self, data: Path, files: Path) -> None:
        self.data, self.files = data, files
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(files / "ca.pem")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("ELASTICDL_")}
        self.environment |= {"ELASTICDL_DATA_DIR": str(data), "ELASTICDL_CA_FILE": str(files / "ca.pem")}

    def issue(self, *names: str) -> list[str]:
        """Writes a certificate; returns the options that name it."""
        made = self.authority.issue_cert(*names)
        made.cert_chain_pems[0].write_to_path(self.files / "cert.pem")
        made.private_key_pem.write_to_path(self.files / "key.pem")
        return ["--tls-cert", str(self.files / "cert.pem"), "--tls-key", str(self.files / "key.pem")]

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "elasticdl", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=150,
            cwd="/",
        )


@pytest.fixture
def operator(folder: Path, tmp_path: Path) -> Iterator[Operator]:
    found = Operator(folder, tmp_path)
    yield found
    found.cli("down")


def test_a_certificate_of_ones_own_on_all_addresses(operator: Operator) -> None:
    options = operator.issue("localhost")
    up = operator.cli("up", "--port", "0", "--detach", "--host", "0.0.0.0", *options)
    assert up.returncode == 0, up.stdout + up.stderr
    address = locate(operator.data)
    assert address is not None and address.api_url.startswith("https://localhost:")
    assert address.ca_file == str(operator.files / "ca.pem")
    with direct_opener(address.api_url, address.ca_file).open(f"{address.api_url}/healthz", timeout=60) as response:
        assert response.status == 200
    with pytest.raises(urllib.error.URLError) as refused:
        urllib.request.urlopen(f"{address.api_url}/healthz", timeout=60, context=ssl.create_default_context())
    assert isinstance(refused.value.reason, ssl.SSLCertVerificationError)
    del operator.environment["ELASTICDL_CA_FILE"]
    shown = operator.cli("whoami")
    assert shown.returncode == 0 and "admin" in shown.stdout, shown.stderr


def test_what_cannot_work_is_refused_before_anything_starts(operator: Operator) -> None:
    for words, said in (
        (["--host", "0.0.0.0"], "refusing to listen on 0.0.0.0 without TLS"),
        (["--tls-cert", "/nowhere.pem"], "go together"),
        (operator.issue("api.example.org"), "is for api.example.org; none of these leads to 127.0.0.1"),
    ):
        done = operator.cli("up", "--port", "0", "--detach", *words)
        assert done.returncode == 2 and said in done.stderr, done.stdout + done.stderr
        assert not (operator.data / "postgres").exists()
