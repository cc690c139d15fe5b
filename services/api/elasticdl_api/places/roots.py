"""The data roots that a namespace may be given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.path_policy import is_below


def check_data_roots(roots: Sequence[str], data_dir: Path) -> None:
    """Refuses roots that would hold the cluster's own data, or lie within them, links followed as they lead now.

    Args:
        roots: absolute paths, beginnings of URLs.
        data_dir: of the cluster: tokens, logs and what jobs of all namespaces wrote.

    Raises:
        InvalidInputError: one does.
    """
    homes = {str(data_dir.absolute()), str(data_dir.resolve())}
    for root in roots:
        if not root.startswith("/"):
            continue
        for place in (root, os.path.realpath(root)):
            if any(is_below(place, home) for home in homes):
                how = "lies within"
            elif any(is_below(home, place) for home in homes):
                how = "holds"
            else:
                continue
            raise InvalidInputError(
                f"the data root {root} {how} the cluster's own data directory {data_dir}",
                fix="give a folder beside it, for the data of the namespace alone; what its own jobs wrote "
                "its jobs may read without a root",
            )
