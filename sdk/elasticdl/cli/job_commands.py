"""``elasticdl train``, ``evaluate`` and ``predict``: from flags to a job."""

from __future__ import annotations

import contextlib
import inspect
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from elasticdl.cli.flags import VERBS, Flag, flags_of, mapping_of, rewrite
from elasticdl.cli.formats import OutputFormat, choose_format, print_data
from elasticdl.cli.job_names import complete_job, find_job
from elasticdl.cli.output import EXIT_OK, write_line
from elasticdl.cli.script_command import OWN, flags_of_script
from elasticdl_core.contract.row import Verdict
from elasticdl_core.errors import ElasticDLError, InvalidInputError
from elasticdl_core.job import JobType
from elasticdl_core.job.fields import ALL_REDUCE
from elasticdl_core.job.ways import Way, become

if TYPE_CHECKING:
    from elasticdl.client import Client, Job

_OWN_PANEL = "This command"
_OWN: dict[str, tuple[bool, Any, str]] = {
    "local": (False, False, "Run in one process on this machine, without a cluster."),
    "detach": (False, False, "Print the job's id and return; the job goes on."),
    "format": (True, None, "As json or yaml the job is printed when it ends; progress goes to standard error."),
    "json": (False, False, "The same as -o json."),
    "dry-run": (False, False, "Check the job and tell when it would start and end; upload and submit nothing."),
    "no-upload": (False, False, "Let the workers read --model_zoo as a shared directory instead of uploading it."),
    "no-check": (False, False, "Submit without looking into the model module first."),
    "idempotency-key": (True, "", "Submitting twice with the same key makes one job."),
}
"""Options beside the flags of the job: whether they take a value, their default, and their help."""
_FROM: dict[str, tuple[bool, Any, str]] = {
    "from": (
        True,
        "",
        "JOB[@VERSION]: the code, parameters and checkpoint (the newest by default) of a job that trained or trains. "
        "Options that are given besides replace those of that job.",
    )
}


def _own_options(kind: JobType) -> dict[str, tuple[bool, Any, str]]:
    return _OWN if kind is JobType.TRAINING else {**_FROM, **_OWN}


def _parameter_name(option: str) -> str:
    """The Python name of an option's value."""
    return "from_job" if option == "from" else option.replace("-", "_")


_EPILOGS = {
    "train": """Examples:

    elasticdl train --local --model_zoo=zoo --model_def=digits.forward --training_data=data/train --num_epochs=2

    elasticdl train --model_zoo=zoo --model_def=digits.forward --training_data=data/train
    --validation_data=data/validation --num_workers=3 --num_ps=2 --use_async=false --grads_to_wait=2

    elasticdl train --model_zoo=zoo --model_def=digits.forward --training_data=data/train --model_params=units=128
    --optimizer_params=lr=0.01 --job_name=wide --detach

Ctrl-C leaves the job alone and returns 130; `elasticdl jobs cancel ID` cancels it. Exit codes: 0 succeeded, 1 failed,
2 wrong flags or model module, 3 cancelled, 4 no API.""",
    "evaluate": """Examples:

    elasticdl evaluate --from=digits --validation_data=data/validation

    elasticdl evaluate --model_zoo=zoo --model_def=digits.forward --validation_data=data/validation
    --checkpoint_dir_for_init=checkpoints""",
    "run": """What stands after -- are the script's own arguments. Its directory is packed and uploaded.
Examples:

    elasticdl run --local examples/own_loop_torch/train.py --training_data=data/train --minibatch_size=32 -- --lr 0.1

    elasticdl run examples/own_loop_torch/train.py --training_data=data/train --num_workers=4 -- --lr 0.1""",
    "predict": """Examples:

    elasticdl predict --from=digits@1200 --prediction_data=data/new --output=predictions

    elasticdl predict --model_zoo=zoo --model_def=digits.forward --prediction_data=data/new
    --checkpoint_dir_for_init=checkpoints --output=predictions""",
}
_HELP = {
    "train": "Train a model on a cluster, or with --local in this process.",
    "run": "Run a PyTorch script with a training loop of its own, on a cluster or with --local in this process.",
    "evaluate": "Evaluate a trained model.",
    "predict": "Predict with a trained model.",
}


class JobCommand(TyperCommand):
    """A command whose flags are the fields of a job."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Checks and rewrites the arguments before they are parsed."""
        if ctx.resilient_parsing:  # a shell asks how to go on
            return list(super().parse_args(ctx, args))
        kind = VERBS.get(str(self.name), JobType.TRAINING)
        if self.name == "run":
            args = flags_of_script(args)
        others = {name: takes_value for name, (takes_value, _, _) in _own_options(kind).items()}
        return list(super().parse_args(ctx, rewrite(kind, args, others, self.name or "")))


def register(app: typer.Typer) -> None:
    """Adds ``train``, ``evaluate`` and ``predict`` to the command line."""
    for verb, kind in {**VERBS, "run": JobType.TRAINING}.items():
        app.command(
            verb,
            cls=JobCommand,
            help=_HELP[verb],
            epilog=_EPILOGS[verb],
            no_args_is_help=True,
            rich_help_panel="Jobs",
        )(_callback(kind, script=verb == "run"))


def _callback(kind: JobType, *, script: bool) -> Callable[..., None]:
    """A function whose signature has a parameter for every flag, for typer to read; help shows what is taken."""
    options = _own_options(kind)

    def run(**given: Any) -> None:
        own = {name: given.pop(name) for name in map(_parameter_name, options)}
        raise typer.Exit(_run(kind, given, own))

    parameters = [_parameter(flag, hidden=script and not _of_scripts(flag.name)) for flag in flags_of(kind).values()]
    for name, (takes_value, default, text) in options.items():
        completed = complete_job if name == "from" else None
        names = [f"--{name}", "-o"] if name == "format" else [f"--{name}"]
        option = typer.Option(*names, help=text, rich_help_panel=_OWN_PANEL, autocompletion=completed)
        kind_of_value = OutputFormat | None if name == "format" else str if takes_value else bool
        annotation: Any = Annotated[kind_of_value, option]
        parameters.append(
            inspect.Parameter(
                _parameter_name(name), inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
        )
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _of_scripts(name: str) -> bool:
    """Whether a script takes a flag, on a cluster or here."""
    ways = (Way.SCRIPT, Way.LOCAL_SCRIPT)
    return name not in OWN and any(become(name, way)[0] is not Verdict.REFUSED for way in ways)


def _parameter(flag: Flag, *, hidden: bool) -> inspect.Parameter:
    names = [f"--{name}" for name in (flag.name, *flag.aliases)]
    option = typer.Option(
        *names,
        metavar=flag.metavar,
        help=flag.help + (f" (default {flag.default})" if flag.default else ""),
        rich_help_panel=flag.panel,
        show_default=False,
        hidden=hidden,
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
    if own["dry_run"] and (own["detach"] or own["idempotency_key"]):
        foreign_flag = "--detach" if own["detach"] else "--idempotency-key"
        raise InvalidInputError(f"{foreign_flag} means nothing with --dry-run", fix="leave one of them out")
    chosen = choose_format(own["format"], own["json"])
    mapping = mapping_of(kind, given)
    zoo_is_here = True
    with contextlib.ExitStack() as until_the_end:
        if own.get("from_job"):
            folder = Path(until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="elasticdl-zoo-")))
            mapping, zoo_is_here = _with_job(own["from_job"], mapping, folder if own["local"] else None)
        return _run_prepared(mapping, own, chosen, zoo_is_here=zoo_is_here)


def _run_prepared(mapping: dict[str, Any], own: dict[str, Any], chosen: OutputFormat, *, zoo_is_here: bool) -> int:
    from elasticdl.submission import prepare

    prepared = prepare(mapping, check=not own["no_check"], zoo_is_here=zoo_is_here, local=own["local"])
    if own["local"]:
        from elasticdl_core.job import JobSpec
        from elasticdl_core.job.ways import refuse_locally

        refuse_locally(JobSpec.from_mapping(prepared))
    own["no_upload"] = own["no_upload"] or not zoo_is_here
    if own["dry_run"] or own["detach"] or own["local"]:  # else it is among the events that are shown
        _tell_of_updates(prepared)
    if own["dry_run"]:
        return _try_out(prepared, local=own["local"], chosen=chosen)
    target = None
    if prepared.get("type") == JobType.PREDICTION and prepared.get("output"):
        from elasticdl.cli.one_prediction_file import target_of

        target = target_of(prepared["output"], detached=bool(own["detach"]))
    with contextlib.ExitStack() as until_the_end:
        parts = None
        if target is not None:
            parts = Path(until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="elasticdl-predictions-")))
            prepared = {name: value for name, value in prepared.items() if name != "output"} | {
                "output_format": "csv"
            }
        if own["local"]:
            from elasticdl.cli.local import run_local

            code = run_local(
                {**prepared, "output": str(parts)} if parts else prepared, chosen, lists_files=parts is None
            )
        else:
            from elasticdl.cli.connection import connect

            with connect() as client:
                code = _submit(client, prepared, own, chosen, parts)
        if target is not None and parts is not None and code == EXIT_OK:
            from elasticdl.cli.one_prediction_file import join_predictions

            join_predictions(parts.iterdir(), target)
            write_line(f"predictions: {target}", to=sys.stderr)
        return code


_SCHEDULED_BY = ("min_workers", "max_workers", "priority", "model_def", "minibatch_size", "num_ps", "use_async")
"""What the scheduler looks at when it is asked what would be."""


def _tell_of_updates(prepared: dict[str, Any]) -> None:
    """Says on standard error what is to be said of a job's updates before it begins."""
    from elasticdl_core.job import JobSpec
    from elasticdl_core.job.updates import words_at_submission

    for words in words_at_submission(prepared, JobSpec.from_mapping(prepared)):
        write_line(words, to=sys.stderr)


def _try_out(prepared: dict[str, Any], *, local: bool, chosen: OutputFormat) -> int:
    """Says that a job passes all checks that are made here, and what it would do to the cluster."""
    from elasticdl.cli.output import stdout
    from elasticdl_core.job import JobSpec

    spec = JobSpec.from_mapping(prepared)
    found = None
    if not local:
        from elasticdl.cli.connection import connect

        most = {name: min(getattr(spec, name), spec.most_computing) for name in ("min_workers", "max_workers")}
        asked = {"name": spec.name, **{name: getattr(spec, name) for name in _SCHEDULED_BY}, **most}
        with connect() as client:
            found = client.what_if(add=[asked])
    if chosen.of_data:
        print_data({"spec": prepared, "what_if": found}, chosen)
        return EXIT_OK
    write_line(f"the {spec.type} job {spec.name} passes all checks; nothing was submitted")
    if found is not None:
        from elasticdl.cli.scheduling_views import comparison

        stdout().print(comparison(found))
    return EXIT_OK


def _with_job(given: str, mapping: dict[str, Any], here: Path | None) -> tuple[dict[str, Any], bool]:
    """Adds what a job trained to what was given; and whether the model zoo is a directory of this machine.

    Args:
        given: the job and, behind an ``@``, a version.
        mapping: what was given besides.
        here: where a local run has the job's code unpacked; None for a job of the cluster.

    Raises:
        InvalidInputError: that job has no such checkpoint, or what was given does not go with it.
    """
    from elasticdl.cli.connection import connect
    from elasticdl.submission import continue_from

    name, at, version = given.partition("@")
    if at and not (version.isascii() and version.isdigit() and len(version) < 19):
        raise InvalidInputError(f"--from {given}: {version!r} is no model version", fix="write JOB or JOB@VERSION")
    if mapping.get("checkpoint_dir_for_init"):
        raise InvalidInputError(
            "--from and --checkpoint_dir_for_init both name a checkpoint", fix="leave one of them out"
        )
    with connect() as client:
        job = find_job(client, name, trained=True)
        fields = continue_from(job, int(version) if at else None, JobType(mapping["type"]))
        own_code = {"model_zoo", "model_bundle"} & mapping.keys()
        if here is not None and not own_code and "model_bundle" in fields:
            fields["model_zoo"] = str(client.unpack(fields.pop("model_bundle"), here))
    if mapping.get("distribution_strategy") == ALL_REDUCE:
        fields.pop("embedding_threshold_bytes", None)  # no embedding becomes a table of parameter servers
    if own_code:
        fields = {name: value for name, value in fields.items() if name not in {"model_zoo", "model_bundle"}}
    return {**fields, **mapping}, bool(own_code) or here is not None


def _submit(
    client: Client, prepared: dict[str, Any], own: dict[str, Any], chosen: OutputFormat, into: Path | None
) -> int:
    """Submits a job and follows it; what it made goes into a folder, if one is given and it succeeded."""
    from elasticdl.cli.following import follow_to_end

    key = own["idempotency_key"] or None
    zoo = prepared.get("model_zoo")
    if zoo and not own["no_upload"]:
        fields = {name: value for name, value in prepared.items() if name != "model_zoo"}
        job = client.submit(fields, model_zoo=zoo, idempotency_key=key)
    else:
        job = client.submit(prepared, idempotency_key=key)
    write_line(f"page: {client.endpoint.url.rstrip('/')}/jobs/{job.id}", to=sys.stderr)
    if own["detach"]:
        write_line(job.id)
        _warn_of_too_few_slots(client, job)
        return 0
    code = follow_to_end(client, job.id, chosen)
    if into is not None and code == EXIT_OK:
        client.download(job.id, into)
    return code


def _warn_of_too_few_slots(client: Client, job: Job) -> None:
    """Says on standard error that a job asks for more than the cluster has; it was taken all the same."""
    try:
        slots = int(client.cluster()["slots"]["total"])
    except (ElasticDLError, KeyError, TypeError):  # the job is submitted, whatever can be said of the cluster
        return
    if job.min_workers > slots:
        from elasticdl_core.scheduling.words import slots_of, workers_of

        words = f"job {job.id} needs {workers_of(job.min_workers)} at least, and the cluster has {slots_of(slots)}"
        write_line(
            f"{words}: it waits until there are more, or until `elasticdl jobs scale` asks for fewer", to=sys.stderr
        )
