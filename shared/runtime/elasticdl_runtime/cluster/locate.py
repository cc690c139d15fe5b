"""Finds the cluster that runs on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elasticdl_runtime.cluster.paths import DataDirectory, default_data_dir
from elasticdl_runtime.cluster.secrets import read_secret_file
from elasticdl_runtime.cluster.state import ClusterState


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The address of a cluster, and its token.

    Attributes:
        api_url: base URL of the API.
        token: the admin token.
        ca_file: what it is verified by under https; empty for the certificates that the machine trusts.
    """

    api_url: str
    token: str
    ca_file: str = ""

    def __repr__(self) -> str:
        return f"ClusterAddress(api_url={self.api_url!r}, token=...)"


def locate(data_dir: Path | None = None) -> ClusterAddress | None:
    """The cluster that ``elasticdl up`` started with this data directory, or None when none runs.

    Args:
        data_dir: its data directory; ``$ELASTICDL_DATA_DIR`` or ``~/.elasticdl`` by default.

    Raises:
        InvalidInputError: a cluster runs but its token cannot be read.
    """
    directory = DataDirectory(default_data_dir() if data_dir is None else data_dir)
    state = ClusterState.running(directory)
    if state is None:
        return None
    return ClusterAddress(state.api_url, read_secret_file(directory.token), state.ca_file)
