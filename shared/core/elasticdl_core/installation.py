"""The distribution that this installation is, its version, and the command that adds an extra to it."""

from __future__ import annotations

import json
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "elasticdl-train"
"""The name for pip; ``elasticdl`` there is another project's package of 2020."""


def own_distribution() -> Distribution:
    """The metadata of this installation.

    Raises:
        importlib.metadata.PackageNotFoundError: the packages are on the path without having been installed.
    """
    return distribution(DISTRIBUTION)


def own_version() -> str:
    """The version of ElasticDL that runs; ``unknown`` where it was not installed."""
    try:
        return own_distribution().version
    except PackageNotFoundError:
        return "unknown"


def install_command(*extras: str) -> str:
    """The command that installs ElasticDL with some extras, from where this installation came.

    Args:
        *extras: names of extras.

    Returns:
        A line for a shell: of the checkout or the wheel that this was installed from, as PEP 610 has it kept, else of
        the package index.
    """
    wanted = f"[{','.join(extras)}]" if extras else ""
    try:
        kept = json.loads(own_distribution().read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        kept = {}
    parts = urlsplit(str(kept.get("url", "")))
    path = unquote(parts.path)
    if parts.scheme != "file" or not Path(path).exists():
        return f"pip install '{DISTRIBUTION}{wanted}'"
    editable = "-e " if kept.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}'{path}{wanted}'"
