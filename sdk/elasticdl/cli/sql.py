"""``elasticdl sql``: statements that train, evaluate and predict."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticdl.cli.formats import OutputFormat
from elasticdl.cli.output import EXIT_INTERRUPTED, EXIT_OK, print_table, write_line
from elasticdl_core.errors import ElasticDLError, InvalidInputError
from elasticdl_core.job.searches import SearchState
from elasticdl_core.json_numbers import from_json
from elasticdl_runtime import durable

if TYPE_CHECKING:
    from elasticdl.client import Client
    from elasticdl.sql.grammar import Statement

_EPILOG = """Examples:

    elasticdl sql --local --source sqlite:///shop.db 'SELECT * FROM old TO TRAIN DNNClassifier LABEL paid INTO pays'

    elasticdl sql --local --source sqlite:///shop.db 'SELECT * FROM new TO PREDICT new.paid USING pays'

    elasticdl sql --local --source sqlite:///shop.db 'SELECT * FROM old LABEL paid INTO pays'

    elasticdl sql --source sqlite:///shop.db --file shop.sql

    elasticdl sql --source shop 'SHOW TRAIN pays'"""
_DONE = ".done"
MODELS = Path("models")
"""The folder of the models where none is given."""


@dataclass(frozen=True)
class StatementEnd:
    """The end of a statement.

    Attributes:
        code: the exit code.
        rows: metrics of an evaluation, or importances of columns.
    """

    code: int
    rows: Sequence[Mapping[str, Any]] = ()


def register(app: typer.Typer) -> None:
    """Adds ``sql`` to the command line."""
    app.command("sql", epilog=_EPILOG, no_args_is_help=True, rich_help_panel="Jobs")(sql)


def sql(
    statement: Annotated[str, typer.Argument(metavar="STATEMENT", help="One statement.", show_default=False)] = "",
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="FILE", help="Statements; it goes on behind the last that succeeded, after a failure."
        ),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            "--source",
            metavar="URL",
            help="The source of the rows: sqlite:///FILE or postgresql://USER@HOST/DATABASE; or the name of one "
            "that the cluster reads itself.",
        ),
    ] = "",
    models: Annotated[
        Path | None,
        typer.Option(
            "--models", metavar="DIR", help="Folder of the models, ./models by default.", show_default=False
        ),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Run in one process on this machine, without a cluster.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the job and its model module; run nothing.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Write both into a folder; run nothing.")
    ] = None,
    cancel: Annotated[
        str,
        typer.Option("--cancel", metavar="ID", help="Stop a search for a model on the cluster.", show_default=False),
    ] = "",
) -> None:
    """Train, evaluate, explain or predict by statements: SELECT ... TO TRAIN model ... LABEL column INTO name."""
    from elasticdl.extras import require

    require("`elasticdl sql`", "sql")
    from elasticdl.sql.grammar import split_statements

    if cancel:
        if statement or file is not None:
            raise InvalidInputError("--cancel stops a search, and takes no statement", fix="leave one of them out")
        from elasticdl.cli.connection import connect

        with connect() as client:
            client.cancel_search(cancel)
        write_line(f"{cancel} is being stopped")
        return
    if bool(statement) == (file is not None):
        raise InvalidInputError("give a statement, or --file with some", fix="leave one of them out")
    if file is not None and not file.is_file():
        raise InvalidInputError(f"there is no file {file}", fix="check the path")
    parsed = parse_all(
        [statement] if file is None else split_statements(file.read_text(encoding="utf-8")), dry_run, save
    )
    if file is None:
        raise typer.Exit(_run_and_tell(parsed[0], source, models, local, dry_run, save))
    done = file.with_name(f".{file.name}{_DONE}") if is_name(source) else (models or MODELS) / _DONE
    digest = source
    for one in parsed:
        digest = hashlib.sha256(f"{digest}\n{one.text.strip()}".encode()).hexdigest()
        finished = done.read_text().split() if done.is_file() else []
        if digest in finished and not (dry_run or save):
            write_line(f"done before: {' '.join(one.text.split())[:100]}", to=sys.stderr)
            continue
        code = _run_and_tell(one, source, models, local, dry_run, save)
        if code != EXIT_OK:
            raise typer.Exit(code)
        if not (dry_run or save):
            done.parent.mkdir(parents=True, exist_ok=True)
            durable.write(done, "\n".join([*finished, digest]) + "\n")
    if not (dry_run or save):
        done.unlink(missing_ok=True)  # the next time begins anew


def is_name(source: str) -> bool:
    """Whether a source is named, so that the cluster reads it, and is no address."""
    return bool(source) and "://" not in source


def _run_there(statement: Statement, source: str, dry_run: bool) -> StatementEnd:
    """Sends a statement to the cluster, and follows its job."""
    import json

    from elasticdl.cli.connection import connect
    from elasticdl.cli.following import follow_to_end
    from elasticdl.sql.explanations import FIELDS, as_csv

    with connect() as client:
        told = client.sql(statement.text, source=source, dry_run=dry_run)
        if statement.verb == "SHOW":
            write_line(told["statement"])
        if told.get("search") is not None:
            if not _follow_search(client, told, dry_run):
                return StatementEnd(EXIT_OK if dry_run else EXIT_INTERRUPTED)
        elif dry_run or statement.verb == "SHOW":
            write_line(json.dumps(told["spec"], indent=2))
            write_line(told["module"] if dry_run else "")
            return StatementEnd(EXIT_OK)
        code = follow_to_end(client, told["job_id"], OutputFormat.TABLE)
        if code != EXIT_OK or statement.verb == "TRAIN":
            return StatementEnd(code)
        result = client.statement(told["job_id"])
    if statement.verb == "PREDICT":
        rows = [[str(cell) for cell in row] for row in result["rows"]]
        print_table(result["columns"], rows, empty="There are no predictions.")
        if result["more"]:
            write_line(f"all of them: elasticdl jobs artifacts {told['job_id']}")
    found = [dict(zip(result["columns"], row, strict=True)) for row in result["rows"]]
    if statement.verb == "EXPLAIN" and statement.into:
        path = Path(f"{statement.into}.csv")
        durable.write(path, as_csv([tuple(one[name] for name in FIELDS) for one in found]))
        write_line(f"written to {path}")
    return StatementEnd(code, found)


def _follow_search(client: Client, told: Mapping[str, Any], dry_run: bool) -> bool:
    """Shows what a search tries until it has found a model; whether it has.

    Raises:
        ElasticDLError: it has found none.
    """
    from elasticdl.cli.sql_trials import beginning

    search, job_id = told["search"], told["job_id"]
    print_table(("COLUMN", "HOLDS", "FEATURES"), search["features"], empty="")
    if dry_run:
        for text in search["statements"]:
            write_line(f"\n{text};")
        return False
    sizes = {"trained": search["trained_rows"], "held": search["held_rows"]}
    write_line(beginning(sizes, search["minibatch_size"], search["metric"]))
    write_line(f"models are compared by jobs with the label search={job_id}")
    try:
        while SearchState(search["state"]).open:
            found = client.watch_search(job_id, seen=search["round"])
            write_line(f"after round {search['round']}:")
            search = found["search"]
            rows = [["" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
                    for row in found["rows"]]  # fmt: skip
            print_table([name.upper() for name in found["columns"]], rows, empty="")
    except KeyboardInterrupt:
        write_line(f"\ndetached; the search goes on\n  stop it:  elasticdl sql --cancel {job_id}", to=sys.stderr)
        return False
    if search["state"] != SearchState.DONE:
        error = search["error"] or {
            "message": f"the search {job_id} was cancelled",
            "fix": "send the statement again",
        }
        raise ElasticDLError(error["message"], fix=error["fix"])
    return True


def parse_all(texts: Sequence[str], dry_run: bool, save: Path | None) -> list[Statement]:
    """Reads statements, all before the first runs.

    Args:
        texts: the statements.
        dry_run: whether they are only to be shown.
        save: the folder that they are only to be written into.

    Raises:
        InvalidInputError: one is written wrong, or is nothing to show or write.
    """
    from elasticdl.sql.grammar import parse_statement

    if dry_run and save is not None:
        raise InvalidInputError("--dry-run writes nothing, and --save does", fix="leave one of them out")
    parsed = [parse_statement(text) for text in texts]
    others = [one.verb for one in parsed if one.verb != "TRAIN"]
    if save is not None and others:
        raise InvalidInputError(f"--save keeps models to train, and {others[0]} makes none", fix="use --dry-run")
    return parsed


def _run_and_tell(
    statement: Statement, source: str, models: Path | None, local: bool, dry_run: bool, save: Path | None
) -> int:
    """Runs a statement; prints importances, which no line of its job shows."""
    ended = run_statement(statement, source, models, local, dry_run, save)
    if statement.verb == "EXPLAIN":
        for row in ended.rows:
            shown = f"{row['metric']} {row['value']:.4g}, {row['shuffled']:.4g} with its values shuffled"
            write_line(f"{row['column']}: {shown}")
    return ended.code


def run_statement(
    statement: Statement, source: str, models: Path | None, local: bool, dry_run: bool, save: Path | None
) -> StatementEnd:
    """Runs a statement, and prints its job's lines.

    Args:
        statement: the statement.
        source: where the rows are; the name of a source of the cluster has it run the statement.
        models: the folder of the models; None for the usual one.
        local: whether the job runs in one process on this machine.
        dry_run: whether it is only to be shown.
        save: the folder that it is only to be written into.

    Raises:
        ElasticDLError: it cannot be run as it is.
    """
    import json

    from elasticdl.sql.jobs import compile_statement, kept_plan, refuse_source

    if is_name(source):
        if local or save or models:
            option = "--local" if local else "--save" if save else "--models"
            raise InvalidInputError(
                f"{source!r} is the name of a source of the cluster, which reads it and keeps its models itself",
                fix=f"leave {option} out, or give the address of the database",
            )
        return _run_there(statement, source, dry_run)
    models = (save or models or MODELS).absolute()
    if statement.verb == "SHOW":
        kept = kept_plan(models, statement.subject)
        write_line(kept["statement"])
        write_line(json.dumps(kept["spec"], indent=2))
        return StatementEnd(EXIT_OK)
    refuse_source(source)
    if not statement.subject:
        from elasticdl.cli.sql_trials import find_model, run_here, run_on_the_cluster

        if save:
            raise InvalidInputError("--save trains nothing, so that no model is found", fix="name one: TO TRAIN ...")
        run = run_here if local else run_on_the_cluster
        best = find_model(statement, source, models, None if dry_run else run)
        if best is None:
            return StatementEnd(EXIT_OK)
        statement = best
    if dry_run:
        with tempfile.TemporaryDirectory() as scratch:
            plan = compile_statement(statement, source, models, scratch=Path(scratch))
        write_line(json.dumps(plan.spec, indent=2))
        write_line(plan.module)
        return StatementEnd(EXIT_OK)
    plan = compile_statement(statement, source, models)
    plan.keep(statement)
    if save:
        write_line(str(plan.folder))
        return StatementEnd(EXIT_OK)
    from elasticdl.submission import prepare

    prepared = prepare(plan.spec)
    metrics: dict[str, float] = {}
    if local:
        from elasticdl.cli.local import run_local

        code = run_local(prepared, take=lambda report: metrics.update(from_json(report["metrics"])))
    else:
        from elasticdl.cli.connection import connect
        from elasticdl.cli.following import follow_to_end

        with connect() as client:
            job = client.submit(
                {k: v for k, v in prepared.items() if k != "model_zoo"}, model_zoo=prepared["model_zoo"]
            )
            code = follow_to_end(client, job.id, OutputFormat.TABLE)
            if code == EXIT_OK and statement.verb in ("EVALUATE", "EXPLAIN"):
                metrics = client.metrics(job.id)["evaluations"][-1]["metrics"]
    if code != EXIT_OK:
        return StatementEnd(code)
    if statement.verb == "EXPLAIN":
        from elasticdl.sql.explanations import FIELDS, importances, keep

        found = importances(metrics)
        if statement.into:
            write_line(f"written to {keep(plan.folder, statement.into, found)}")
        return StatementEnd(code, [dict(zip(FIELDS, one, strict=True)) for one in found])
    if statement.verb == "PREDICT":
        write_line(f"predictions for {statement.subject} are in {plan.spec['output']}; the database was only read")
    evaluated = metrics if statement.verb == "EVALUATE" else {}
    return StatementEnd(code, [{"metric": name, "value": value} for name, value in evaluated.items()])
