"""Names and paths of what a job made, as the api wants them."""

from __future__ import annotations

from pathlib import Path, PurePath

from elasticdl_core.path_policy import is_url


def locate(name: str, path: str, artifacts: Path, output: str) -> tuple[str, str]:
    """The name to show and the path to report for a file.

    Args:
        name: the name that the worker gave; may be empty.
        path: as the worker wrote it: absolute, or relative to the artifacts directory; or a URL.
        artifacts: the job's artifacts directory.
        output: where the user wants the output; empty for the artifacts directory.

    Returns:
        Name and path. The path is relative within the artifacts directory, else absolute, or the URL.
    """
    if is_url(path):
        return name or path.removeprefix(output).lstrip("/"), path
    pure = PurePath(path)
    if not pure.is_absolute():
        return name or str(pure), str(pure)
    if pure.is_relative_to(artifacts):
        relative = str(pure.relative_to(artifacts))
        return name or relative, relative
    if output and pure.is_relative_to(output):
        return name or str(pure.relative_to(output)), str(pure)
    return name or pure.name, str(pure)
