"""The files that a worker made, as it reports them with a task."""

from __future__ import annotations

import json

from elasticdl_master.state.instructions import PostArtifact


def artifacts_in(result: bytes) -> list[PostArtifact]:
    """The files that a report's result names; none if it names none."""
    try:
        files = json.loads(result).get("files", []) if result else []
    except (ValueError, AttributeError):
        return []
    return [
        PostArtifact(
            str(entry.get("name", "")),
            str(entry.get("path") or entry.get("name", "")),
            int(entry.get("size", 0)),
            str(entry.get("sha256", "")),
        )
        for entry in files
    ]
