"""TLS between members of different machines, with the credentials that the agent gives each process."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from elasticdl_core.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class LinkSecurity:
    """The certificates that a member shows to others, and verifies them by.

    Who connects asks for the name that the other one has published through the master, so that no other process of
    the cluster can come between the two; who accepts knows the other one by the job's secret.

    Attributes:
        file: holds this process' key, its certificate and the authority's, as PEM; read for each connection, since
            the agent replaces it from time to time.
        name: that the certificate bears.
    """

    file: Path
    name: str

    def check(self) -> None:
        """Refuses credentials that cannot be used.

        Raises:
            InvalidInputError: says why.
        """
        try:
            self._prepare(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"the credentials {self.file} cannot be used: {error}",
                fix="give a file with this process' key, its certificate and the authority's, each as PEM",
            ) from None

    def accept(self, connection: socket.socket) -> ssl.SSLSocket:
        """Speaks TLS on a connection that came in.

        Raises:
            OSError: the other side does not, or has no certificate of the authority.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        return self._prepare(context).wrap_socket(connection, server_side=True)

    def connect(self, connection: socket.socket, name: str) -> ssl.SSLSocket:
        """Speaks TLS on a connection that goes out.

        Raises:
            OSError: it does not, or is somebody else.
        """
        return self._prepare(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)).wrap_socket(connection, server_hostname=name)

    def _prepare(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.load_cert_chain(self.file)
        context.load_verify_locations(self.file)
        return context
