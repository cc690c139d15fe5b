"""Prepares a user's specification for submission: makes paths absolute and checks it before the upload."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elasticdl_core.checkpoint_manifest import newness
from elasticdl_core.errors import DataError, InvalidInputError
from elasticdl_core.job import JobSpec, JobType, resolve_aliases
from elasticdl_core.job.field_groups import NOT_FOR, OF_THE_MODEL
from elasticdl_core.job.fields import default_of
from elasticdl_core.job.ways import refuse_meaningless
from elasticdl_core.path_policy import is_url, path_text
from elasticdl_core.well_formed import well_formed
from elasticdl_runtime.home import expand_home

_DATA = ("training_data", "validation_data", "prediction_data")
_PLACES = ("checkpoint_dir", "checkpoint_dir_for_init", "output")


def continue_from(job: Mapping[str, Any], version: int | None = None, kind: JobType | None = None) -> dict[str, Any]:
    """The fields of a job that evaluates or predicts with what another job trained: its code, settings, checkpoint.

    Args:
        job: the job that trained, as ``Client.get`` gives it.
        version: the model version of the checkpoint; when not given that which was committed last, also of a job that
            still runs.
        kind: of the job that goes on; what means nothing to that is left out.

    Raises:
        InvalidInputError: it has no such checkpoint.
    """
    committed = {int(one["version"]): one for one in job.get("checkpoints") or ()}
    if not committed:
        spec = job.get("spec") or {}
        trains = spec.get("type", "training") == "training"
        fix = (
            "wait until it has saved one (--checkpoint_steps, or its end)"
            if trains
            else f"name the job that trained the model; this one is of type {spec.get('type')}"
        )
        raise InvalidInputError(f"job {job['id']} ({job['state']}) has no checkpoint", fix=fix)
    newest = max(committed, key=lambda one: newness({**committed[one]["manifest"], "version": one}))
    chosen = newest if version is None else version
    if chosen not in committed:
        known = ", ".join(str(one) for one in sorted(committed))
        raise InvalidInputError(
            f"job {job['id']} has no checkpoint of version {chosen}", fix=f"it has checkpoints of {known}"
        )
    # What is as it would be anyway says nothing: an option of parameter servers would mean them.
    shared = OF_THE_MODEL - (NOT_FOR[kind] if kind is not None else frozenset())
    fields = {name: value for name, value in job["spec"].items() if name in shared and value != default_of(name)}
    return {**fields, "checkpoint_dir_for_init": str(committed[chosen]["manifest"]["directory"])}


def prepare(
    mapping: dict[str, Any], *, check: bool = True, zoo_is_here: bool = True, local: bool = False
) -> dict[str, Any]:
    """A specification ready for submission.

    ``max_workers`` follows ``min_workers`` up when only the latter was given.

    Args:
        mapping: fields of ``JobSpec`` as given on the command line.
        check: whether to look into the model module too.
        zoo_is_here: whether ``model_zoo`` is a directory of this machine, and no path that the cluster alone may see.
        local: whether the job runs in this process, which opens any file of this machine.

    Raises:
        SpecError: with every problem of the specification.
        UserCodeError: the model module lacks something or does not parse.
        DataError: a relative path to data does not exist.
    """
    prepared = resolve_aliases(mapping)
    if "min_workers" in prepared and "max_workers" not in prepared:
        prepared["max_workers"] = max(1, prepared["min_workers"])
    if prepared.get("model_zoo") and zoo_is_here:
        prepared["model_zoo"] = str(_zoo(prepared["model_zoo"]))
    spec = JobSpec.from_mapping(prepared)
    refuse_meaningless(spec)
    if check and spec.model_zoo and zoo_is_here:
        from elasticdl.keras_settings import check_keras_file, chosen_keras
        from elasticdl.model_check import check_model_module
        from elasticdl.recognition import TENSORFLOW

        if check_model_module(spec.model_zoo, spec, local=local) == TENSORFLOW:
            check_keras_file()
            if chosen_keras() == "legacy":
                prepared.setdefault("keras", "legacy")
    names_tables = spec.data_reader_params.get("kind") == "odps"
    return absolute_paths(prepared, any_word=bool(spec.custom_data_reader) or names_tables)


def absolute_paths(mapping: dict[str, Any], *, any_word: bool) -> dict[str, Any]:
    """The specification with relative local paths made absolute: its job runs in other directories.

    Args:
        mapping: fields of ``JobSpec``.
        any_word: leave relative names of data that are no paths here, as a reader may know them or they name
            tables; otherwise they are an error.

    Raises:
        DataError: a relative path to data does not exist.
    """
    absolute = dict(mapping)
    for name in _DATA:
        if isinstance(absolute.get(name), str) and absolute[name]:
            absolute[name] = absolute_data(name, absolute[name], any_word=any_word)
    for name in _PLACES:
        if isinstance(absolute.get(name), str) and absolute[name]:
            absolute[name] = _absolute(absolute[name])
    return absolute


def _zoo(path: str) -> Path:
    zoo = expand_home(path).absolute()
    if zoo.is_dir():
        return zoo
    what = "a file" if zoo.is_file() else "not there"
    fix = (
        f"give its directory, {zoo.parent}" if zoo.is_file() else "check the path; `elasticdl zoo init DIR` makes one"
    )
    raise InvalidInputError(f"--model_zoo: {zoo} is {what}", fix=fix)


def absolute_data(flag: str, origin: str, *, any_word: bool) -> str:
    """A data origin that means the same from any directory: relative local paths become absolute ones.

    Args:
        flag: the flag it came from.
        origin: a path, directory, glob, comma-separated list of them, or URL.
        any_word: whether a custom reader may understand names that are no paths.

    Raises:
        DataError: a relative path that does not exist here.
    """
    return ",".join(_absolute_part(flag, part.strip(), any_word) for part in origin.split(","))


def _absolute_part(flag: str, part: str, any_word: bool) -> str:
    if "::" in part:
        *links, last = part.split("::")
        return "::".join([*links, _absolute_part(flag, last, any_word)])
    if not part or "://" in part or Path(part).is_absolute():
        return _sendable(part)
    path = _absolute(part)
    if Path(path).exists() or any(glob.iglob(path, recursive=True)):  # noqa: PTH207 (absolute patterns)
        return _sendable(path)
    if any_word:
        return part
    raise DataError(
        f"--{flag}: there is no {part} in {Path.cwd()}",
        fix="check the path; for data that only the cluster sees give an absolute path or a URL, and for names that "
        "are no paths name their reader with --custom_data_reader",
    )


def _sendable(path: str) -> str:
    """A path as it is, or as a URL if it is not UTF-8."""
    return path if path == well_formed(path) else Path(path).as_uri()


def _absolute(path: str) -> str:
    if is_url(path):
        return path
    path = path_text(path)
    return os.path.normpath(expand_home(path).absolute())
