"""Checkpoints that somebody stored: their manifests, and which one a folder stands for.

Masters read them here, and so does who trains, evaluates or predicts in one process: a folder means the same to all.
"""

from __future__ import annotations

import contextlib
import json

from pydantic import TypeAdapter, ValidationError

from elasticdl_core.checkpoint_manifest import Manifest, newness
from elasticdl_core.errors import DataError
from elasticdl_core.path_policy import PathPolicy, is_url, join_place
from elasticdl_runtime.object_store import ObjectStore
from elasticdl_runtime.path_checks import require_place, require_reach
from elasticdl_runtime.safe_files import read_regular

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 256 << 20
_MANIFEST: TypeAdapter[Manifest] = TypeAdapter(Manifest)


def find_checkpoint(path: str, reach: PathPolicy | None = None) -> Manifest:
    """The manifest of a checkpoint directory, or of the one within a directory that was saved last.

    Args:
        path: the directory; may be a URL.
        reach: what the job may read; None for everything.

    Raises:
        DataError: there is none, or it is damaged.
        PermissionDeniedError: it is not the job's to read.
        UnavailableError: the store that it is in does not answer.
    """
    if is_url(path):
        return _find_stored(require_place(path, reach))
    root = require_reach(path, reach)
    candidates = [root / MANIFEST] if (root / MANIFEST).is_file() else sorted(root.glob(f"*/{MANIFEST}"))
    if not candidates:
        raise _none_in(path)
    manifests = []
    for candidate in candidates:
        try:
            folder = require_reach(candidate.parent, reach)
            data = read_regular(folder, MANIFEST, MAX_MANIFEST_BYTES)
        except OSError as error:
            raise DataError(f"{candidate} cannot be read: {error}", fix="give another checkpoint") from None
        manifests.append(read_manifest(data, str(candidate.parent.absolute())))
    return max(manifests, key=newness)


def _find_stored(url: str) -> Manifest:
    store = ObjectStore(url)
    sizes = {name: size for name, size in store.sizes().items() if name.rpartition("/")[2] == MANIFEST}
    names = [MANIFEST] if MANIFEST in sizes else sorted(name for name in sizes if name.count("/") == 1)
    if not names:
        raise _none_in(url)
    manifests = []
    for name in names:
        if sizes[name] > MAX_MANIFEST_BYTES:
            raise DataError(f"{join_place(url, name)} has {sizes[name]:,} bytes", fix="give another checkpoint")
        # One that is removed meanwhile was an old one.
        with contextlib.suppress(FileNotFoundError):
            manifests.append(read_manifest(store.read(name), join_place(url, name).rpartition("/")[0]))
    if not manifests:
        raise _none_in(url)
    return max(manifests, key=newness)


def _none_in(path: str) -> DataError:
    return DataError(
        f"there is no checkpoint in {path}",
        fix="give a directory with a manifest.json, or one of such directories",
    )


def read_manifest(data: bytes, directory: str) -> Manifest:
    """Reads a manifest that lies in a directory, whatever directory it says.

    Raises:
        DataError: it is no JSON of that form.
    """
    try:
        return _MANIFEST.validate_python({**json.loads(data), "directory": directory})
    except (ValueError, TypeError, RecursionError) as error:
        reason = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise DataError(f"{directory}/manifest.json is damaged: {reason}", fix="give another checkpoint") from None


def first_problem(error: ValidationError) -> str:
    """The first of the things that are wrong with the form of JSON, and where."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
