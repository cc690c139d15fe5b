"""Writing to MaxCompute (ODPS) tables, at the original project's import path; needs the package ``pyodps``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from elasticdl.data.odps_access import Access, MaxComputeConfig
from elasticdl.prediction import PredictedTask

__all__ = ["ODPSWriter", "is_odps_configured"]

_TIMEOUT_S = 200


def is_odps_configured() -> bool:
    """Whether the environment says how to reach MaxCompute."""
    needed = (MaxComputeConfig.PROJECT_NAME, MaxComputeConfig.ACCESS_ID, MaxComputeConfig.ACCESS_KEY)
    return all(name in os.environ for name in needed)


class ODPSWriter:
    """Writes records to a table, those of each worker, or of each task, to a partition of its own.

    Args:
        project: the project; that of ``project.table`` goes first.
        access_id: id of the access key.
        access_key: the access key.
        endpoint: address of the service.
        table: the table; it is made if it is not there.
        columns: names of the columns, for a table that is made.
        column_types: their types.
        options: ``odps.options`` by name, such as ``odps.options.read_timeout``.

    Raises:
        ImportError: ``pyodps`` is not installed.
    """

    def __init__(
        self,
        project: str,
        access_id: str,
        access_key: str,
        endpoint: str,
        table: str,
        columns: Sequence[str] | None = None,
        column_types: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            import odps
        except ImportError as error:
            raise ImportError(
                "ODPSWriter needs the package pyodps: `pip install pyodps` where the workers run", name="odps"
            ) from error
        if "." in table:
            project, table = table.split(".", 1)
        defaults = {f"{kind}_timeout": _TIMEOUT_S for kind in ("read", "connect")}
        given = {name.removeprefix("odps.options."): value for name, value in (options or {}).items()}
        self._options = {**defaults, **given}
        self._access = Access(project, access_id, access_key, endpoint or "")
        self._schema = odps.models.TableSchema
        self._client = odps.ODPS(access_id, access_key, project, endpoint)
        self._project, self._name = project, table
        self._columns, self._types = columns, column_types
        self._table: Any = None

    def from_iterator(self, records_iter: Iterable[Sequence[Any]], worker_index: int) -> None:
        """Writes what an iterable gives (records, or lists of them) to a worker's partition: all once, or nothing.

        Raises:
            ValueError: the table is not there, and its columns are not known.
            DataError: the service does not take them.
        """
        self._known().write(f"worker={worker_index}", _rows(records_iter))

    def from_task(self, records_iter: Iterable[Sequence[Any]], task: PredictedTask) -> None:
        """Writes the predictions of a task to a partition of its own, in place of what is there.

        Args:
            records_iter: records, or lists of them.
            task: what ``process_task`` of a processor of predictions gets.

        Raises:
            ValueError: the table is not there, and its columns are not known.
            DataError: the service does not take them.
        """
        unique = hashlib.sha256(task.name.encode()).hexdigest()[:16]
        partition = f"worker=task-{unique}-{task.start}-{task.end}"
        self._known().write(partition, _rows(records_iter), replacing=True)

    def _known(self) -> Any:
        if self._table is None:
            self._table = self._open()
        return self._table

    def _open(self) -> Any:
        from elasticdl.data.odps_service import OdpsTable

        if not self._client.exist_table(self._name):
            if self._columns is None or self._types is None:
                raise ValueError(
                    f"table {self._name} is not there: give columns and column_types, by which it is made"
                )
            schema = self._schema.from_lists(list(self._columns), list(self._types), ["worker"], ["string"])
            self._client.create_table(self._name, schema)
        return OdpsTable(
            f"odps://{self._project}/{self._name}", self._access, self._project, self._name, self._options
        )


def _rows(records: Iterable[Any]) -> Iterator[list[Any]]:
    """Records one by one, with numbers of NumPy as those of Python."""
    for one in records:
        several = len(one) and isinstance(one[0], list | tuple)
        for record in one if several else (one,):
            yield [value.item() if isinstance(value, np.generic) else value for value in record]
