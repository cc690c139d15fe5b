"""The token and the secret of a cluster, made on its first start."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime import durable


def ensure_secret_file(path: Path) -> str:
    """Reads a secret, making it on first use: 43 random characters, readable for this user alone.

    Raises:
        InvalidInputError: the file is there and empty, or cannot be read.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_secret_file(path)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
    durable.sync_folder(path.parent)
    return read_secret_file(path)


def read_secret_file(path: Path) -> str:
    """Reads a secret.

    Raises:
        InvalidInputError: the file is missing, empty, or not for us to read.
    """
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InvalidInputError(
            f"cannot read {path}: {error.strerror}", fix="run `elasticdl up` as its owner"
        ) from None
    except UnicodeDecodeError:
        raise InvalidInputError(f"{path} is not text", fix="put the secret back as it was made") from None
    if not text:
        raise InvalidInputError(
            f"{path} is empty",
            fix="put the secret back; or, if nothing of the cluster is to be kept, remove the file",
        )
    return text


def derive(cluster_secret: str, purpose: str) -> str:
    """A password or token for one purpose, as 64 hex digits; tells nothing of the secret or of the others."""
    return hmac.new(cluster_secret.encode(), f"cluster:{purpose}".encode(), hashlib.sha256).hexdigest()
