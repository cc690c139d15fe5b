"""The process that plans one statement: it reads the rows where they are and writes them to the job's folder.

It is told the statement, says which model that uses, is told all else, and answers with the plan or what is wrong. It
has the address of the source and no other secret; the rows go from the database to the disk, a portion at a time.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from elasticdl.sql.databases import SourceUnreachableError
from elasticdl.sql.grammar import Statement, parse_statement
from elasticdl.sql.plans import StatementModel, job_name, model_of, plan_statement
from elasticdl.sql.search import SearchPlan, plan_search
from elasticdl_core.errors import DataError, ElasticDLError, InvalidInputError, SpecError, StatementError

MEMORY_BYTES = 2 << 30
CPU_S = 300
MOST_BYTES = 64 << 30
"""Most bytes of one file of rows."""
MODULE_BYTES = 2 << 20
_TEXT = 4000


def main() -> None:
    """Plans the statement on its standard input."""
    os.nice(5)
    os.umask(0o022)  # workers may be of another user
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    try:
        statement = parse_statement(json.loads(sys.stdin.readline())["statement"])
        model = statement.subject if statement.verb == "SHOW" else model_of(statement)
        name = model or statement.into
        target = statement.subject.rpartition(".")[2] if statement.verb == "PREDICT" else statement.into
        searches = statement.verb == "TRAIN" and not statement.subject
        told = {
            "verb": statement.verb,
            "model": name,
            "uses": bool(model),
            "target": target,
            "searches": searches,
        }
        _say({**told, "job_name": job_name(name)})
        line = sys.stdin.readline()
        if line:
            _say(_plan(statement, **json.loads(line)))
    except MemoryError:
        _say(
            _described(InvalidInputError("the statement takes too much memory", fix="select fewer or shorter values"))
        )
    except ElasticDLError as error:
        _say(_described(error))


def _plan(statement: Statement, *, source: str, rows: str, room: int | None, model: Any) -> dict[str, Any]:
    most = MOST_BYTES if room is None else min(room, MOST_BYTES)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # Python ignores the signal: writing fails
    parts = urlsplit(source)
    if parts.password is not None:
        # Behind the address it would stand in errors; the environment is this process's alone.
        os.environ["PGPASSWORD"] = unquote(parts.password)
        source = parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", "@", 1)).geturl()
    trained = None if model is None else StatementModel(**model)
    search: SearchPlan | None = None
    try:
        if statement.verb == "TRAIN" and not statement.subject:
            search = plan_search(statement, source, Path(rows))
        else:
            planned = plan_statement(statement, source, Path(rows), trained)
    except SourceUnreachableError as error:
        return {"unreachable": _shortened(error.message)}
    except OSError as error:
        if error.errno not in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT):
            raise
        raise DataError(f"there is no room for the rows ({most >> 20} MiB are left)", fix="select fewer") from None
    if search is not None:
        for module in search.modules:
            _check_size(module)
        return dataclasses.asdict(search)
    _check_size(planned.module)
    return {**dataclasses.asdict(planned) | {"snapshot": planned.snapshot.path.name}, "rows": planned.snapshot.rows}


def _check_size(module: str) -> None:
    if len(module.encode()) > MODULE_BYTES:
        raise InvalidInputError(
            f"the model's module would have over {MODULE_BYTES >> 20} MiB: values of columns stand in it",
            fix="write HASH(column, 10000) for columns of long texts",
        )


def _described(error: ElasticDLError) -> dict[str, Any]:
    said: dict[str, Any] = {"code": error.code, "message": _shortened(error.message), "fix": _shortened(error.fix)}
    if isinstance(error, StatementError):
        said |= {"line": error.line, "column": error.column}
    if isinstance(error, SpecError):
        said |= {"problems": [[_shortened(text) for text in dataclasses.astuple(one)] for one in error.problems]}
    return {"refused": said}


def _shortened(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
