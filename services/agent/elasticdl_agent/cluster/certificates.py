"""The certificate of a local cluster's API: the user's own, or one for development that is made and renewed here."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime import durable
from elasticdl_runtime.authority import CertificateAuthority, end_of, names_in
from elasticdl_runtime.hosts import is_address, is_loopback
from elasticdl_runtime.tls import CA_VARIABLE, check_certificate

LIFETIME = timedelta(days=90)
RENEWED_BEFORE = timedelta(days=30)
_AUTHORITY_LIFETIME = timedelta(days=3650)
_ANYWHERE = frozenset({"0.0.0.0", "::"})


@dataclass(frozen=True, slots=True)
class ApiCertificate:
    """The certificate of the API.

    Attributes:
        certificate: with its chain, as PEM.
        key: its key, as PEM.
        ca_file: what clients on this machine verify it by; empty for the certificates that the machine trusts.
        names: what it is for.
    """

    certificate: Path
    key: Path
    ca_file: str
    names: tuple[str, ...]

    @classmethod
    def given(cls, certificate: Path, key: Path, ca_file: str) -> ApiCertificate:
        """The user's own.

        Raises:
            InvalidInputError: certificate and key cannot be used together.
        """
        check_certificate(certificate, key)
        return cls(certificate, key, ca_file, names_in(certificate.read_bytes()))

    def url(self, host: str, port: int) -> str:
        """The address at which this machine reaches an API that shows it.

        Args:
            host: what the API listens on.
            port: its port.

        Raises:
            InvalidInputError: the certificate is for no name that leads there.
        """
        known = {name.lower() for name in self.names}
        for name in _ways_to(host, self.names):
            if name.lower() in known:
                return f"https://{_in_url(name)}:{port}"
        listed = ", ".join(self.names) or "no name at all"
        raise InvalidInputError(
            f"the certificate {self.certificate} is for {listed}; none of these leads to {host} on this machine",
            fix=f"give a certificate that is also for {', '.join(_ways_to(host, ()))}; or let one of its names lead "
            "to this machine (/etc/hosts)",
        )


class DevelopmentCertificates:
    """An authority and a certificate that it signed, in a folder that this user alone can enter.

    Args:
        folder: where they are kept.
        names: what the certificate shall be for.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = folder
        self._names = tuple(dict.fromkeys(names))
        self.ca, self._ca_key = folder / "ca.pem", folder / "ca-key.pem"
        self.certificate, self.key = folder / "cert.pem", folder / "key.pem"

    def ensure(self, now: datetime | None = None) -> ApiCertificate:
        """Makes what is missing, and anew what ends soon or is for other names; the key stays.

        Args:
            now: the time; the present one by default.

        Raises:
            InvalidInputError: what is there cannot be read.
        """
        moment = datetime.now(UTC) if now is None else now
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if not (self.ca.exists() or self._ca_key.exists()):
            made = CertificateAuthority.make(f"ElasticDL development on {socket.gethostname()}", _AUTHORITY_LIFETIME)
            durable.write(self._ca_key, made.key, 0o600)
            durable.write(self.ca, made.pem, 0o600)
        authority = CertificateAuthority.read(self.ca, self._ca_key)
        if authority.ends_at <= moment + LIFETIME:
            raise InvalidInputError(
                f"the authority {self.ca} ends at {authority.ends_at:%Y-%m-%d}",
                fix=f"remove {self._folder}, run `elasticdl up` again, and give clients the new authority",
            )
        if not self._is_good(authority, moment):
            kept = self.key.read_bytes() if self.key.exists() else None
            issued = authority.issue(self._names, LIFETIME, key=kept, begin=moment)
            if kept is None:
                durable.write(self.key, issued.key, 0o600)
            durable.write(self.certificate, issued.pem, 0o600)
        return ApiCertificate(self.certificate, self.key, str(self.ca), self._names)

    def _is_good(self, authority: CertificateAuthority, now: datetime) -> bool:
        if not (self.certificate.exists() and self.key.exists()):
            return False
        pem = self.certificate.read_bytes()
        fits = set(names_in(pem)) == set(self._names) and authority.signed(pem)
        return fits and end_of(pem) - now > RENEWED_BEFORE


def names_of_machine(host: str, others: Iterable[str] = ()) -> tuple[str, ...]:
    """The names in a certificate for development: loopback, this machine's name, and where the API listens.

    Args:
        host: what the API listens on.
        others: more names.
    """
    names = ["localhost", "127.0.0.1", "::1", *_plain(socket.gethostname()), *_plain(*others)]
    if host in _ANYWHERE:
        names += sorted(_addresses_here())
    elif host not in names:
        names.append(host)
    return tuple(dict.fromkeys(names))


def ca_of_environment() -> str:
    """The CA that the user gives for a certificate of their own.

    Raises:
        InvalidInputError: there is no such file.
    """
    given = os.environ.get(CA_VARIABLE, "")
    if given and not Path(given).is_file():
        raise InvalidInputError(
            f"{CA_VARIABLE}={given} is no file", fix="point it at a file of certificates as PEM, or unset it"
        )
    return str(Path(given).absolute()) if given else ""


def in_the_open(host: str, port: int) -> str:
    """The address of an API without TLS."""
    return f"http://{_in_url(host)}:{port}"


def _ways_to(host: str, names: Iterable[str]) -> list[str]:
    """Addresses and names at which this machine reaches what listens on a host, the nearest first."""
    local = ["127.0.0.1", "localhost"] if is_loopback(host) or host in _ANYWHERE else []
    own = [] if host in _ANYWHERE else [host]
    here = _addresses_here() | {"127.0.0.1", "::1"} if host in _ANYWHERE else {host}
    return list(dict.fromkeys([*own, *local, *(name for name in names if _leads_to(name, here))]))


def _leads_to(name: str, addresses: set[str]) -> bool:
    if is_address(name):
        return name in addresses
    if "*" in name:
        return False
    with contextlib.suppress(OSError, UnicodeError):
        return any(found[4][0] in addresses for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    return False


def _addresses_here() -> set[str]:
    kinds = (socket.AF_INET, socket.AF_INET6)
    listed = [one.address for cards in psutil.net_if_addrs().values() for one in cards if one.family in kinds]
    return {text for text in listed if "%" not in text and not ipaddress.ip_address(text).is_link_local}


def _plain(*names: str) -> list[str]:
    """The names that a certificate can hold."""
    return [name for name in names if name and name.isascii() and "*" not in name]


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
