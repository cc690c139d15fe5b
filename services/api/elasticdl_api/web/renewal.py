"""Shows a certificate that was renewed, without a restart: new connections get it, those that are open go on."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import structlog

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.tls import check_certificate

_CHECK_S = 2.0
_log = structlog.get_logger(__name__)
Marks = tuple[tuple[int, int, int], ...]


async def keep_renewing(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Looks at the files until cancelled; what cannot be used is not taken, and the one before stays.

    Args:
        context: of the server.
        certificate: with its chain, as PEM.
        key: its key.
    """
    shown = await asyncio.to_thread(_marks, certificate, key)
    while True:
        await asyncio.sleep(_CHECK_S)
        found = await asyncio.to_thread(_marks, certificate, key)
        if found == shown:
            continue
        shown = found
        try:
            await asyncio.to_thread(check_certificate, certificate, key)
            context.load_cert_chain(certificate, key)
        except (InvalidInputError, OSError) as error:
            _log.error("the renewed certificate cannot be used; the one before stays", error=str(error))
        else:
            _log.info("the certificate was renewed", certificate=str(certificate))


def _marks(*paths: Path) -> Marks:
    """The marks that change when a file is changed or replaced."""
    found = []
    for path in paths:
        try:
            state = path.stat()
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((state.st_ino, state.st_mtime_ns, state.st_size))
    return tuple(found)
