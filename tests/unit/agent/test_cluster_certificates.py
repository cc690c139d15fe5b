"""Certificates of a local cluster: what is made, kept, renewed, and which address leads to an API that shows one."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from elasticdl_agent.cluster.certificates import (
    LIFETIME,
    RENEWED_BEFORE,
    ApiCertificate,
    DevelopmentCertificates,
    in_the_open,
    names_of_machine,
)
from elasticdl_agent.cluster.options import ClusterOptions
from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.authority import CertificateAuthority, end_of, names_in
from elasticdl_runtime.tls import check_certificate

NOW = datetime.now(UTC)


def test_what_is_made_is_for_this_user_alone_and_can_be_used(tmp_path: Path) -> None:
    made = DevelopmentCertificates(tmp_path / "tls", names_of_machine("127.0.0.1")).ensure()
    check_certificate(made.certificate, made.key)
    assert {"localhost", "127.0.0.1", "::1"} <= set(names_in(made.certificate.read_bytes()))
    folder = tmp_path / "tls"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == dict.fromkeys(("ca.pem", "ca-key.pem", "cert.pem", "key.pem"), 0o600)


def test_it_is_kept_until_it_ends_soon_and_then_signed_anew_with_its_key(tmp_path: Path) -> None:
    certificates = DevelopmentCertificates(tmp_path / "tls", ["localhost"])
    made = certificates.ensure(NOW)
    first, key, ca = (path.read_bytes() for path in (made.certificate, made.key, certificates.ca))
    certificates.ensure(NOW + LIFETIME - RENEWED_BEFORE - timedelta(minutes=1))
    assert made.certificate.read_bytes() == first
    later = NOW + LIFETIME - RENEWED_BEFORE + timedelta(minutes=1)
    certificates.ensure(later)
    assert made.certificate.read_bytes() != first
    assert end_of(made.certificate.read_bytes()) == (later + LIFETIME).replace(microsecond=0)
    assert (made.key.read_bytes(), certificates.ca.read_bytes()) == (key, ca)
    check_certificate(made.certificate, made.key)


def test_it_is_made_anew_for_other_names_and_by_another_authority(tmp_path: Path) -> None:
    made = DevelopmentCertificates(tmp_path / "tls", ["localhost"]).ensure()
    DevelopmentCertificates(tmp_path / "tls", ["localhost", "192.0.2.7"]).ensure()
    renewed = made.certificate.read_bytes()
    assert set(names_in(renewed)) == {"localhost", "192.0.2.7"}
    for name in ("ca.pem", "ca-key.pem"):
        (tmp_path / "tls" / name).unlink()
    DevelopmentCertificates(tmp_path / "tls", ["localhost", "192.0.2.7"]).ensure()
    assert made.certificate.read_bytes() != renewed


def test_what_is_damaged_is_refused_with_what_to_do(tmp_path: Path) -> None:
    certificates = DevelopmentCertificates(tmp_path / "tls", ["localhost"])
    certificates.ensure()
    (tmp_path / "tls" / "ca-key.pem").unlink()
    with pytest.raises(InvalidInputError, match="cannot be read") as refused:
        certificates.ensure()
    assert "remove both" in refused.value.fix
    other = CertificateAuthority.make("another", timedelta(days=1))
    (tmp_path / "tls" / "ca-key.pem").write_bytes(other.key)
    with pytest.raises(InvalidInputError, match="is not that of"):
        certificates.ensure()


def test_an_authority_that_ends_soon_is_not_used(tmp_path: Path) -> None:
    certificates = DevelopmentCertificates(tmp_path / "tls", ["localhost"])
    certificates.ensure()
    with pytest.raises(InvalidInputError, match=r"the authority .* ends at"):
        certificates.ensure(NOW + timedelta(days=3600))


@pytest.mark.parametrize(
    ("names", "host", "url"),
    [
        (("localhost", "127.0.0.1"), "127.0.0.1", "https://127.0.0.1:8"),
        (("localhost",), "127.0.0.1", "https://localhost:8"),
        (("LocalHost",), "0.0.0.0", "https://localhost:8"),
        (("127.0.0.1", "192.0.2.7"), "192.0.2.7", "https://192.0.2.7:8"),
        (("::1",), "::1", "https://[::1]:8"),
    ],
)
def test_this_machine_reaches_the_api_by_a_name_of_its_certificate(
    names: tuple[str, ...], host: str, url: str
) -> None:
    assert ApiCertificate(Path("c"), Path("k"), "", names).url(host, 8) == url


def test_a_certificate_that_is_for_nobody_here_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"is for \*\.example\.org; none of these leads to 127\.0\.0\.1"):
        ApiCertificate(Path("c"), Path("k"), "", ("*.example.org",)).url("127.0.0.1", 8)


def test_addresses_of_ip6_have_brackets() -> None:
    assert in_the_open("::1", 8) == "http://[::1]:8"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_listening_beyond_loopback_in_the_open_is_refused_with_the_fix(host: str) -> None:
    with pytest.raises(InvalidInputError, match=f"refusing to listen on {host} without TLS") as refused:
        ClusterOptions(host=host).check()
    assert "--tls-cert FILE --tls-key FILE" in refused.value.fix and "--tls-generate" in refused.value.fix
    ClusterOptions(host=host, tls_generate=True).check()


def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    made = DevelopmentCertificates(tmp_path / "tls", ["localhost"]).ensure()
    with pytest.raises(InvalidInputError, match="go together"):
        ClusterOptions(tls_cert=made.certificate).check()
    with pytest.raises(InvalidInputError, match="--tls-generate makes a certificate"):
        ClusterOptions(tls_cert=made.certificate, tls_key=made.key, tls_generate=True).check()
    with pytest.raises(InvalidInputError, match="cannot be used"):
        ClusterOptions(tls_cert=made.certificate, tls_key=tmp_path / "none").check()
    with pytest.raises(InvalidInputError, match="neither an address nor a name"):
        ClusterOptions(host="no.such.host.invalid").check()


def test_addresses_are_named_as_addresses() -> None:
    """No client looks for an address among host names."""
    issued = CertificateAuthority.of_secret("secret").issue(["127.0.0.1", "here.example", "::1"], timedelta(days=1))
    assert names_in(issued.pem) == ("here.example", "127.0.0.1", "::1")
