"""Removes databases that lie apart from data directories of tests, which ``nobody`` could not enter."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_CLUSTERS = Path("/var/lib/elasticdl/clusters")


def remove_data_apart(*prefixes: str) -> None:
    """Removes the databases of data directories whose paths begin so, and the notes of who owned them."""
    for note in _CLUSTERS.glob("*.owner"):
        if os.fsdecode(note.read_bytes()).startswith(prefixes):
            shutil.rmtree(note.with_suffix(""))
            note.unlink()
