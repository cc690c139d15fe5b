# Made from elasticdl/client/aio/tables.py by tools/gen_blocking_client.py; change that file, not this one.
"""Tables that are a job's data: where they are written, by what the caller may see."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elasticdl.client.blocking.access import AccessCalls
from elasticdl.client.blocking.waiting import run_blocking
from elasticdl.client.endpoint import Endpoint
from elasticdl.client.table_files import cache_folder, folder_below, given_folder, refuse_elsewhere, write_tables


def place_tables(
    calls: AccessCalls, endpoint: Endpoint, tables: Mapping[str, Any], data_folder: str | os.PathLike[str] | None
) -> dict[str, str]:
    """Writes tables where the caller's jobs may read them.

    Args:
        calls: tell the caller's namespace and its data roots.
        endpoint: of the API.
        tables: by the field that they are the data of.
        data_folder: where; found out if None, for a cluster of this machine.

    Returns:
        The name of each field's data.

    Raises:
        InvalidInputError: no folder is known that the jobs may read.
        DataError: one cannot be written.
    """
    if data_folder is not None:
        folder = given_folder(data_folder, tables)
    elif not tables:
        return {}
    else:
        folder = _folder(calls, endpoint, tables)
    return run_blocking(write_tables, tables, folder)


def _folder(calls: AccessCalls, endpoint: Endpoint, tables: Mapping[str, Any]) -> Path:
    if not endpoint.local:
        refuse_elsewhere(tables, endpoint.url)
    namespace = (calls.whoami())["namespace"]
    if namespace is None:
        return cache_folder()
    return folder_below(tables, namespace, list((calls.namespace(namespace))["data_roots"]))
