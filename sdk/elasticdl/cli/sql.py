"""``elasticdl sql``: statements that train, evaluate and predict."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elasticdl.cli.formats import OutputFormat
from elasticdl.cli.output import EXIT_OK, write_line
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.json_numbers import from_json
from elasticdl_runtime import durable

if TYPE_CHECKING:
    from elasticdl.sql.grammar import Statement

_EPILOG = """Examples:

    elasticdl sql --local --source sqlite:///shop.db 'SELECT * FROM old TO TRAIN DNNClassifier LABEL paid INTO pays'

    elasticdl sql --local --source sqlite:///shop.db 'SELECT * FROM new TO PREDICT new.paid USING pays'

    elasticdl sql --source sqlite:///shop.db --file shop.sql"""
_DONE = ".done"


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
            help="The source of the rows: sqlite:///FILE or postgresql://USER@HOST/DATABASE.",
        ),
    ] = "",
    models: Annotated[Path, typer.Option("--models", metavar="DIR", help="Folder of the models.")] = Path("models"),
    local: Annotated[
        bool, typer.Option("--local", help="Run in one process on this machine, without a cluster.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the job and its model module; run nothing.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Write both into a folder; run nothing.")
    ] = None,
) -> None:
    """Train, evaluate, explain or predict by statements: SELECT ... TO TRAIN model ... LABEL column INTO name."""
    from elasticdl.extras import require

    require("`elasticdl sql`", "sql")
    from elasticdl.sql.grammar import parse_statement, split_statements

    if dry_run and save is not None:
        raise InvalidInputError("--dry-run writes nothing, and --save does", fix="leave one of them out")

    if bool(statement) == (file is not None):
        raise InvalidInputError("give a statement, or --file with some", fix="leave one of them out")
    if file is not None and not file.is_file():
        raise InvalidInputError(f"there is no file {file}", fix="check the path")
    texts = [statement] if file is None else split_statements(file.read_text(encoding="utf-8"))
    parsed = [parse_statement(text) for text in texts]  # all, before the first runs
    others = [one.verb for one in parsed if one.verb != "TRAIN"]
    if save is not None and others:
        raise InvalidInputError(f"--save keeps models to train, and {others[0]} makes none", fix="use --dry-run")
    if file is None:
        raise typer.Exit(_run(parsed[0], source, models, local, dry_run, save))
    done, digest = models / _DONE, source
    for one in parsed:
        digest = hashlib.sha256(f"{digest}\n{one.text}".encode()).hexdigest()
        finished = done.read_text().split() if done.is_file() else []
        if digest in finished and not (dry_run or save):
            write_line(f"done before: {' '.join(one.text.split())[:100]}", to=sys.stderr)
            continue
        code = _run(one, source, models, local, dry_run, save)
        if code != EXIT_OK:
            raise typer.Exit(code)
        if not (dry_run or save):
            models.mkdir(parents=True, exist_ok=True)
            durable.write(done, "\n".join([*finished, digest]) + "\n")
    if not (dry_run or save):
        done.unlink(missing_ok=True)  # the next time begins anew


def _run(statement: Statement, source: str, models: Path, local: bool, dry_run: bool, save: Path | None) -> int:
    import json

    from elasticdl.sql.jobs import compile_statement, kept_plan, refuse_source

    models = (save or models).absolute()
    if statement.verb == "SHOW":
        kept = kept_plan(models, statement.subject)
        write_line(kept["statement"])
        write_line(json.dumps(kept["spec"], indent=2))
        return EXIT_OK
    refuse_source(source)
    if dry_run:
        with tempfile.TemporaryDirectory() as scratch:
            plan = compile_statement(statement, source, models, scratch=Path(scratch))
        write_line(json.dumps(plan.spec, indent=2))
        write_line(plan.module)
        return EXIT_OK
    plan = compile_statement(statement, source, models)
    plan.keep(statement)
    if save:
        write_line(str(plan.folder))
        return EXIT_OK
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
            if code == EXIT_OK and statement.verb == "EXPLAIN":
                metrics = client.metrics(job.id)["evaluations"][-1]["metrics"]
    if code == EXIT_OK and statement.verb == "EXPLAIN":
        from elasticdl.sql.explanations import importances, keep

        found = importances(metrics)
        for metric, column, value, shuffled in found:
            write_line(f"{column}: {metric} {value:.4g}, {shuffled:.4g} with its values shuffled")
        if statement.into:
            write_line(f"written to {keep(plan.folder, statement.into, found)}")
    if code == EXIT_OK and statement.verb == "PREDICT":
        write_line(f"predictions for {statement.subject} are in {plan.spec['output']}; the database was only read")
    return code
