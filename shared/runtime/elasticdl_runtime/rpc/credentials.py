"""TLS between processes: addresses under it, and the certificate that a process shows to others.

An address ``tls://<name>@<host>:<port>`` says where a server is, and who: what answers there must show a certificate
for that name, signed by the cluster's authority. Who calls shows a certificate, too. A process of a job has the name
``<role>-<index>.<job>``. Its credentials are one file: its key, its certificate, the authority's. Whoever issues them
replaces the file before the certificate ends; servers show the new one from the next connection on, and clients
connect anew.
"""

from __future__ import annotations

import functools
import math
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from elasticdl_core.errors import InvalidInputError, PermissionDeniedError
from elasticdl_runtime.hosts import is_loopback
from elasticdl_runtime.settings import ProcessSettings

CREDENTIALS_VARIABLE = "ELASTICDL_RPC_CREDENTIALS"
_LOOK_S = 5.0
_SCHEME = "tls://"
_ADDRESS = re.compile(r"tls://(?P<name>[a-z0-9][-.a-z0-9]{0,250})@(?P<place>\S+:[0-9]{1,5})")
_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----\n.*?-----END \1-----\n", re.DOTALL)
_TLS = [b"ssl"]


class RpcSettings(ProcessSettings):
    """Settings of a process that speaks TLS to others.

    Attributes:
        rpc_credentials: ``ELASTICDL_RPC_CREDENTIALS``, file with its key, its certificate and the authority's.
    """

    rpc_credentials: Path | None = None


@dataclass(frozen=True, slots=True)
class TlsAddress:
    """An address under TLS.

    Attributes:
        name: who serves there, as its certificate says.
        place: host and port.
    """

    name: str
    place: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.name}@{self.place}"

    @classmethod
    def parse(cls, address: str) -> TlsAddress | None:
        """Reads an address; None for one without TLS.

        Raises:
            InvalidInputError: it is malformed.
        """
        if not address.startswith(_SCHEME):
            return None
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise InvalidInputError(f"{address!r} is no address under TLS", fix="write tls://<name>@<host>:<port>")
        return cls(match["name"], match["place"])


class RpcCredentials:
    """The certificate of this process and what it verifies others by, read anew when the file was replaced.

    Args:
        source: a file that holds the key, the certificate and the authority's certificate, as PEM; or that itself,
            which nobody replaces.

    Raises:
        InvalidInputError: the file cannot be read, or something is missing.
    """

    def __init__(self, source: Path | bytes) -> None:
        self._version = 0
        self._look_at = math.inf
        self._mark: tuple[int, int] = (0, 0)
        if isinstance(source, bytes):
            self._adopt(source, "what was given")
        else:
            self._file = source
            self._take()

    @property
    def version(self) -> int:
        """Another number for each certificate; looks at the file every few seconds."""
        if time.monotonic() >= self._look_at:
            try:
                self._take()
            except InvalidInputError:
                self._look_at = time.monotonic() + _LOOK_S  # what we have goes on for as long as it is valid
        return self._version

    def adopt(self, data: bytes) -> None:
        """Shows another certificate from now on, where no file is looked at.

        Raises:
            InvalidInputError: something is missing in it.
        """
        self._adopt(data, "what was given")

    def of_channel(self) -> grpc.ChannelCredentials:
        """Credentials of a client, which verify servers and are shown to them."""
        key, certificate, authority = self._blocks
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def of_server(self) -> grpc.ServerCredentials:
        """Credentials of a server, always the present ones, for clients that show some as well."""
        shown = self.version

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown
            present = self.version
            if present == shown:
                return None
            shown = present
            return self._configuration()

        return grpc.dynamic_ssl_server_credentials(self._configuration(), fetch, require_client_authentication=True)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        key, certificate, authority = self._blocks
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)

    def _take(self) -> None:
        self._look_at = time.monotonic() + _LOOK_S
        try:
            found = self._file.stat()
            mark = (found.st_ino, found.st_mtime_ns)
            if mark == self._mark:
                return
            data = self._file.read_bytes()
        except OSError as error:
            raise InvalidInputError(
                f"the credentials {self._file} cannot be read: {error.strerror}",
                fix=f"point {CREDENTIALS_VARIABLE} at the file that the agent wrote for this process",
            ) from None
        self._adopt(data, str(self._file))
        self._mark = mark

    def _adopt(self, data: bytes, where: str) -> None:
        blocks = [(match[1], match[0]) for match in _BLOCK.finditer(data)]
        keys = [block for kind, block in blocks if kind.endswith(b"PRIVATE KEY")]
        certificates = [block for kind, block in blocks if kind == b"CERTIFICATE"]
        if len(keys) != 1 or len(certificates) != 2:
            raise InvalidInputError(
                f"{where} holds no key with its certificate and the authority's",
                fix="have the agent write it anew",
            )
        # One assignment: gRPC asks from threads of its own.
        self._blocks = keys[0], certificates[0], certificates[1]
        self._version += 1


def own_credentials() -> RpcCredentials:
    """The credentials that the environment of this process names.

    Raises:
        InvalidInputError: it names none, or they cannot be used.
    """
    file = RpcSettings.read().rpc_credentials
    if file is None:
        raise InvalidInputError(
            "an address under TLS needs credentials, and this process has none",
            fix=f"set {CREDENTIALS_VARIABLE} to the file that the agent wrote for it",
        )
    return _of_file(file)


@functools.lru_cache(8)
def _of_file(file: Path) -> RpcCredentials:
    return RpcCredentials(file)


def require_private(address: str) -> None:
    """Refuses a place that is neither a unix socket nor on loopback: what is sent there without TLS, others read.

    Raises:
        InvalidInputError: says what to use.
    """
    host = address.rpartition(":")[0]
    if not address.startswith("unix:") and not is_loopback(host):
        raise InvalidInputError(
            f"refusing {address} without TLS",
            fix="use a unix socket or 127.0.0.1, or an address under TLS: tls://<name>@<host>:<port>",
        )


def check_peer(context: grpc.aio.ServicerContext, caller: Any) -> None:
    """Refuses who shows another's token: over TLS, the certificate must be for whom the token names.

    Args:
        context: of the call.
        caller: whom the token names; its ``certificate_name`` is compared.

    Raises:
        PermissionDeniedError: the certificate is somebody else's.
    """
    found = context.auth_context()
    if found.get("transport_security_type") != _TLS:
        return  # a unix socket that the server has besides
    shown = [name.decode(errors="replace") for name in found.get("x509_subject_alternative_name", ())]
    wanted = getattr(caller, "certificate_name", "")
    if not wanted or wanted not in shown:
        raise PermissionDeniedError(
            f"the certificate is for {', '.join(shown) or 'nobody'}, the token for {wanted or 'nobody known'}",
            fix="use the credentials and the token of one and the same process",
        )
