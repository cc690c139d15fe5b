"""Plans statements in processes of their own, a few at once, so that no rows go through the memory of the api."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import structlog

from elasticdl_api.examination import confined
from elasticdl_core.errors import (
    DataError,
    ElasticDLError,
    InvalidInputError,
    Problem,
    SpecError,
    StatementError,
    UnavailableError,
)
from elasticdl_runtime.lifecycle import within

WALL_S = 330.0
"""Seconds for one statement: the database has 300 of them."""
_PARSED_S = 30.0
_ANSWER_BYTES = 16 << 20
_OF_NAMESPACE, _IN_ALL = 2, 4
_log = structlog.get_logger(__name__)


class Planning:
    """A statement that is being planned: the process knows it, and waits for where its rows are.

    Attributes:
        verb: what it does.
        model: the model that it uses or makes.
        uses: whether it uses it.
        job_name: the name of its job.
        target: the name of what comes out: a model, the column that is predicted, an explanation.
        searches: whether it names no model, so that some are compared.
    """

    def __init__(self, process: asyncio.subprocess.Process, parsed: Mapping[str, Any]) -> None:
        self._process = process
        self.verb = str(parsed["verb"])
        self.model = str(parsed["model"])
        self.uses = bool(parsed["uses"])
        self.job_name = str(parsed["job_name"])
        self.target = str(parsed["target"])
        self.searches = bool(parsed["searches"])

    async def plan(
        self, source: str, address: str, rows: Path, *, room: int | None, model: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Reads the rows and plans the job.

        Args:
            source: the name of the source.
            address: its address.
            rows: the folder that the rows go into.
            room: bytes that they may take; None for no limit.
            model: name, columns and classes of the model that is used.

        Returns:
            The fields of ``PlannedStatement``; of the rows the name of their file, and how many they are. Those of
            ``SearchPlan`` where it names no model.

        Raises:
            InvalidInputError: the statement is refused, or its rows are.
        """
        asked = {"source": address, "rows": str(rows), "room": room, "model": model}
        try:
            found = await _exchange(self._process, asked, WALL_S)
        except OSError as error:
            raise UnavailableError(f"the rows cannot be written: {error.strerror}", fix="try again") from None
        if "unreachable" in found:
            _log.warning("a source cannot be read", source=source, error=found["unreachable"])
            raise DataError(
                f"the source {source!r} cannot be reached",
                fix="have an administrator look: the log of the api says why",
            )
        return found


class StatementPlanner:
    """Starts a process for each statement, two of a namespace and four in all at once."""

    def __init__(self) -> None:
        self._busy: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def begin(self, namespace: str, statement: str) -> AsyncGenerator[Planning]:
        """Parses a statement in a process that is there as long as the block.

        Raises:
            StatementError: it is written wrong.
            UnavailableError: too many are being planned.
        """
        if self._busy[namespace] >= _OF_NAMESPACE or self._busy.total() >= _IN_ALL:
            raise UnavailableError(
                "too many statements are being planned at this moment", fix="try again in a moment"
            )
        self._busy[namespace] += 1
        try:
            process = await asyncio.create_subprocess_exec(
                *confined.command_of("elasticdl_api.examination.statement_process"),
                **confined.options(),
                limit=_ANSWER_BYTES,
            )
            try:
                yield Planning(process, await _exchange(process, {"statement": statement}, _PARSED_S))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.communicate()
        finally:
            self._busy[namespace] -= 1


async def _exchange(process: asyncio.subprocess.Process, asked: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    answer = b""
    with contextlib.suppress(TimeoutError, ConnectionError, ValueError):  # it is late, it died, or says too much
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        answer = await within(process.stdout.readline(), seconds)
    if not answer:
        raise InvalidInputError("the statement takes too long, or too much", fix="select less, or write it shorter")
    found: dict[str, Any] = json.loads(answer)
    if "refused" in found:
        raise _error_of(**found["refused"])
    return found


def _error_of(
    *, code: str, message: str, fix: str, line: int = 0, column: int = 0, problems: list[list[str]] | None = None
) -> ElasticDLError:
    if line:
        return StatementError(message, fix=fix, line=line, column=column)
    if problems is not None:
        return SpecError([Problem(*one) for one in problems])
    return (DataError if code == DataError.code else InvalidInputError)(message, fix=fix)
