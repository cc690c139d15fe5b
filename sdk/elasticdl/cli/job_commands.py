"""``elasticdl train``, ``evaluate`` and ``predict``: from flags to a job."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from elasticdl.cli.flags import VERBS, Flag, flags_of, mapping_of, rewrite
from elasticdl.cli.output import write_line
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job import JobType

if TYPE_CHECKING:
    from elasticdl.client import Client

_OWN_PANEL = "This command"
_OWN: dict[str, tuple[bool, Any, str]] = {
    "local": (False, False, "Run in one process on this machine, without a cluster."),
    "detach": (False, False, "Print the job's id and return; the job goes on."),
    "json": (False, False, "Print the job as JSON when it ends; progress goes to standard error."),
    "no-upload": (False, False, "Let the workers read --model_zoo as a shared directory instead of uploading it."),
    "no-check": (False, False, "Submit without looking into the model module first."),
    "idempotency-key": (True, "", "Submitting twice with the same key makes one job."),
}
"""Options beside the flags of the job: whether they take a value, their default, and their help."""

_EPILOGS = {
    "train": """Examples:

    elasticdl train --local --model_zoo=zoo --model_def=digits.forward --training_data=data/train --num_epochs=2

    elasticdl train --model_zoo=zoo --model_def=digits.forward --training_data=data/train
    --validation_data=data/validation --num_workers=3 --num_ps=2 --use_async=false --grads_to_wait=2

    elasticdl train --model_zoo=zoo --model_def=digits.forward --training_data=data/train --model_params=units=128
    --optimizer_params=lr=0.01 --job_name=wide --detach

Ctrl-C leaves the job alone and returns 130; `elasticdl jobs cancel ID` cancels it. Exit codes: 0 succeeded, 1 failed,
2 wrong flags or model module, 3 cancelled, 4 no API.""",
    "evaluate": """Example:

    elasticdl evaluate --model_zoo=zoo --model_def=digits.forward --validation_data=data/validation
    --checkpoint_dir_for_init=checkpoints""",
    "predict": """Example:

    elasticdl predict --model_zoo=zoo --model_def=digits.forward --prediction_data=data/new
    --checkpoint_dir_for_init=checkpoints --output=predictions""",
}
_HELP = {
    "train": "Train a model on a cluster, or with --local in this process.",
    "evaluate": "Evaluate a trained model.",
    "predict": "Predict with a trained model.",
}


class JobCommand(TyperCommand):
    """A command whose flags are the fields of a job."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Checks and rewrites the arguments before they are parsed."""
        others = {name: takes_value for name, (takes_value, _, _) in _OWN.items()}
        plain = rewrite(VERBS[str(self.name)], args, others)
        return list(super().parse_args(ctx, plain))


def register(app: typer.Typer) -> None:
    """Adds ``train``, ``evaluate`` and ``predict`` to the command line."""
    for verb, kind in VERBS.items():
        app.command(
            verb,
            cls=JobCommand,
            help=_HELP[verb],
            epilog=_EPILOGS[verb],
            no_args_is_help=True,
            rich_help_panel="Jobs",
        )(_callback(kind))


def _callback(kind: JobType) -> Callable[..., None]:
    """A function whose signature has a parameter for every flag, for typer to read."""

    def run(**given: Any) -> None:
        own = {name.replace("-", "_"): given.pop(name.replace("-", "_")) for name in _OWN}
        raise typer.Exit(_run(kind, given, own))

    parameters = [_parameter(flag) for flag in flags_of(kind).values()]
    for name, (takes_value, default, text) in _OWN.items():
        option = typer.Option(f"--{name}", help=text, rich_help_panel=_OWN_PANEL)
        annotation: Any = Annotated[str, option] if takes_value else Annotated[bool, option]
        parameters.append(
            inspect.Parameter(
                name.replace("-", "_"), inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
        )
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(flag: Flag) -> inspect.Parameter:
    names = [f"--{name}" for name in (flag.name, *flag.aliases)]
    option = typer.Option(
        *names,
        metavar=flag.metavar,
        help=flag.help + (f" (default {flag.default})" if flag.default else ""),
        rich_help_panel=flag.panel,
        show_default=False,
    )
    annotation = Annotated[str | None, option]
    return inspect.Parameter(flag.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _run(kind: JobType, given: dict[str, str | None], own: dict[str, Any]) -> int:
    if own["local"]:
        foreign = [name for name in ("detach", "no_upload", "idempotency_key") if own[name]]
        if foreign:
            raise InvalidInputError(
                f"--{foreign[0].replace('_', '-')} means nothing with --local", fix="leave one of them out"
            )
    from elasticdl.submission import prepare

    prepared = prepare(mapping_of(kind, given), check=not own["no_check"])
    if own["local"]:
        from elasticdl.cli.local import run_local

        return run_local(prepared, as_json=own["json"])
    from elasticdl.client import Client

    with Client() as client:
        return _submit(client, prepared, own)


def _submit(client: Client, prepared: dict[str, Any], own: dict[str, Any]) -> int:
    from elasticdl.cli.following import follow_to_end

    key = own["idempotency_key"] or None
    zoo = prepared.get("model_zoo")
    if zoo and not own["no_upload"]:
        fields = {name: value for name, value in prepared.items() if name != "model_zoo"}
        job = client.submit(fields, model_zoo=zoo, idempotency_key=key)
    else:
        job = client.submit(prepared, idempotency_key=key)
    if own["detach"]:
        write_line(job.id)
        return 0
    return follow_to_end(client, job.id, as_json=own["json"])
