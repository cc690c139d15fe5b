"""TLS: what a server shows, and what a client trusts. A certificate that cannot be used is refused at the start."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl_core.errors import InvalidInputError

if TYPE_CHECKING:
    import urllib.request

CA_VARIABLE = "ELASTICDL_CA_FILE"


def check_certificate(certificate: Path, key: Path) -> None:
    """Refuses a certificate and a key that a server cannot use together.

    Raises:
        InvalidInputError: one cannot be read, or they do not belong together.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_refuse_password)
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"the certificate {certificate} and the key {key} cannot be used: {_reason(error)}",
            fix="give the certificate with its chain, and its key without a password, each as PEM",
        ) from None


def trust(ca_file: str) -> ssl.SSLContext:
    """Trust of a client: the certificates of a file; of none, those that this machine trusts.

    Raises:
        InvalidInputError: the file cannot be read, or holds no certificate.
    """
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"the certificates in {ca_file} cannot be used: {_reason(error)}",
            fix=f"point {CA_VARIABLE} at a file of certificates as PEM",
        ) from None


def direct_opener(url: str, ca_file: str) -> urllib.request.OpenerDirector:
    """Opens addresses of this machine's cluster, past all proxies.

    Args:
        url: the address.
        ca_file: what it is verified by under https.

    Raises:
        InvalidInputError: the file of certificates cannot be used.
    """
    import urllib.request

    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=trust(ca_file)))
    return urllib.request.build_opener(*handlers)


def _refuse_password() -> str:
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error).replace("_", " ").lower()
    return str(getattr(error, "strerror", None) or error)
