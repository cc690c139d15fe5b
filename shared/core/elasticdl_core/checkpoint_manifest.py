"""The content of a checkpoint, as JSON data: ``manifest.json`` beside its files, and the entry in the api."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired

from typing_extensions import TypedDict  # Pydantic does not read that of typing before Python 3.12

from elasticdl_core.errors import InvalidInputError


class ManifestFile(TypedDict):
    """A file of one parameter server; ``ps`` says which one wrote it."""

    name: str
    size: int
    sha256: str
    ps: NotRequired[int]


class Provenance(TypedDict):
    """Of which job and which code a checkpoint is.

    Attributes:
        job_id: whose it is.
        model_def: the entry of the model module.
        model_params: its parameters.
        code: the bundle, or the directory, of the code.
    """

    job_id: str
    model_def: str
    model_params: Mapping[str, Any]
    code: str


class BestMark(TypedDict):
    """The mark of a checkpoint whose model has the best evaluation so far.

    Attributes:
        metric: by which.
        mode: ``min`` or ``max``, which is better.
        value: of that metric.
        version: the model version that was evaluated.
        evaluation: its number.
    """

    metric: str
    mode: str
    value: float
    version: int
    evaluation: int


class Manifest(TypedDict):
    """A checkpoint. What is not required was added after the first checkpoints were written.

    Attributes:
        version: the model version: that of the first PS.
        directory: where the files are, as an absolute path.
        files: those of all PS.
        job_id: whose it is.
        kind: why it was taken: periodic, recovery, best, final, suspend.
        created_at: seconds since 1970.
        num_ps: how many PS wrote it.
        model: what the first PS says of the model.
        model_def: the entry of the model module.
        model_params: its parameters.
        code: the bundle, or the directory, of the code.
        training_epoch: number of complete epochs.
        records_done: records of the job's work that are in it.
        done: the ledger of those records.
        start_version: the model version that the job began at.
        columns: the names of the columns that the model was trained on, in the order of a record; empty where records
            have none.
        layers: what names of layers stand for in the module, as far as it says that.
        best: the evaluation by which it was the best when it was written, if any; the newest mark
            holds.
    """

    version: int
    directory: str
    files: list[ManifestFile]
    job_id: NotRequired[str]
    kind: NotRequired[str]
    created_at: NotRequired[float]
    num_ps: NotRequired[int]
    model: NotRequired[Any]
    model_def: NotRequired[str]
    model_params: NotRequired[Mapping[str, Any]]
    code: NotRequired[str]
    training_epoch: NotRequired[int]
    records_done: NotRequired[int]
    done: NotRequired[Mapping[str, Any]]
    start_version: NotRequired[int]
    columns: NotRequired[list[str]]
    layers: NotRequired[dict[str, str]]
    best: NotRequired[BestMark | None]


def check_same_layers(saved: Mapping[str, str], present: Mapping[str, str]) -> None:
    """Refuses a checkpoint of which a layer has another name in the model, while its own name is another layer's.

    Args:
        saved: what the names of layers stood for when the checkpoint was written.
        present: what they stand for in the model.

    Raises:
        InvalidInputError: with the layer and both names.
    """
    places = {origin: name for name, origin in present.items()}
    for name, origin in sorted(saved.items()):
        now = places.get(origin, name)
        if now != name and name in present:
            raise InvalidInputError(
                f"in the checkpoint the layer {name} is the module's {origin}, which is {now} in the model, where "
                f"{name} is {present[name]}: each would get the other's weights",
                fix="make the layers in the order in which they were made then, or give each a name: "
                "Embedding(..., name='user')",
            )


def newness(manifest: Mapping[str, Any]) -> tuple[float, int]:
    """The sort key of checkpoints: the newest is the one that was saved last.

    It is not the one of the highest version: a job that could not read that one went back to an older one, and
    what it has saved since is what it stands by.
    """
    return float(manifest.get("created_at", 0.0)), int(manifest["version"])
