"""Trains one row's model in every way that the product has, and compares what comes out.

A *row* is a model module with its data and options. ``--local`` is the local run's own function; the clusters are
the real master with a real queue, real parameter servers behind gRPC and the workers' own loop, trainer and export
(see ``processes``). What is compared is what a user gets: the exported model, the evaluations, or the words of the
refusal.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from elasticdl.submission import prepare
from elasticdl_core.errors import ElasticDLError
from elasticdl_core.job import JobSpec
from elasticdl_core.path_policy import is_url
from elasticdl_master.queue.redis import RedisQueue
from elasticdl_master.runner import JobRunner
from elasticdl_master.settings import MasterSettings
from elasticdl_master.state.limits import Limits
from elasticdl_runtime.object_store import ObjectStore
from elasticdl_worker.local import run_local
from tests.differential.processes import RealProcesses, forget
from tests.fakes.internal_api import InternalApi
from tests.fakes.redis_server import RedisServer

EQUAL = 1e-6
JOB_S = 240.0
CRASH = "--local crashed:"
HUNG = f"no end in {JOB_S:.0f} s"
BASE: Mapping[str, Any] = {
    "model_def": "",
    "model_zoo": "",
    "minibatch_size": 8,
    "num_minibatches_per_task": 3,
    "num_epochs": 2,
    "shuffle": False,
    "seed": 3,
    "num_ps": 1,
    "max_workers": 2,
    "export_formats": "keras",
}
SECRET = "5" * 64
_numbers = itertools.count()
Weights = dict[str, np.ndarray[Any, Any]]
Evaluations = tuple[Mapping[str, float], ...]
During = Callable[[InternalApi, RealProcesses], Awaitable[None]]


@dataclass(frozen=True)
class Row:
    """A model to train in every way.

    Attributes:
        name: of the row and of its module.
        source: the module.
        family: what it is an example of; CI runs some rows of each.
        spec: fields of the job.
        model: the model's entry in the module.
        data: writes the data into a folder and returns fields of the job; the same columns for all by default.
        refused: part of the words with which every way refuses the row; empty if it trains.
        one: verdict on one worker, strictly in order: ``equal``, ``close`` (it has learned as much) or ``form`` (the
            same records, weights of the same forms, all of them numbers).
        two: verdict on two workers and two PS: ``equal`` (synchronous, all minibatches alike, so that any two make
            the same update), ``close`` or ``form`` (asynchronous), or empty if it says nothing new.
        counts: whether the number of records must agree too.
        tolerance: largest difference that is equal, relative to the largest element of a tensor, at least absolute.
        served: also export a SavedModel, and compare its predictions.
        loose: names of weights that need not agree, as a regular expression, with the reason in a comment.
    """

    name: str
    source: str
    family: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    model: str = "forward"
    data: Callable[[Path, bool], Mapping[str, Any]] | None = None
    refused: str = ""
    one: str = "equal"
    two: str = "equal"
    counts: bool = True
    tolerance: float = EQUAL
    served: bool = False
    loose: str = ""

    @property
    def trains_on(self) -> bool:
        """Whether servers take updates while the model is evaluated in the midst of an epoch; a group waits."""
        return (
            bool(self.spec.get("evaluation_steps")) and "EarlyStopping" not in self.source.split("def callbacks")[-1]
        )

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Outcome:
    """What a user has in the end.

    Attributes:
        error: the words of the refusal, with what to do; empty after a success.
        weights: of the exported model, by name, rows of open tables included.
        evaluations: metrics, in order.
        records: how many were trained.
        skipped: how many were passed over, by kind of data and reason.
        steps: how many updates there were.
        output: where the export is.
        history: what happened: the model versions of evaluations, why training ended, the names of what was exported.
        told: the events of a cluster's job, as kind and message.
    """

    error: tuple[str, str] = ("", "")
    weights: Weights = field(default_factory=dict)
    evaluations: Evaluations = ()
    records: int = 0
    skipped: Mapping[tuple[str, str], int] = field(default_factory=dict)
    steps: int = 0
    output: Path = Path()
    history: tuple[tuple[str, Any], ...] = ()
    told: tuple[tuple[str, str], ...] = ()

    @property
    def checkpoints(self) -> Path:
        """Where a job has left its checkpoints: a cluster's, or a local run that was asked for some."""
        local = self.output / "checkpoints"
        return local if local.is_dir() else self.output.parents[1] / "checkpoints"

    @property
    def evaluated(self) -> tuple[int, ...]:
        """The model versions of the evaluations, in order."""
        return tuple(version for what, version in self.history if what == "evaluated")


class Bench:
    """Runs rows, one at a time.

    Args:
        folder: for data and results; short, because sockets lie there.
        redis: the queue's.

    Attributes:
        rows: how many rows were compared.
        runs: how many times a model was trained for that.
    """

    def __init__(self, folder: Path, redis: RedisServer) -> None:
        self.rows = self.runs = 0
        self._folder = folder
        self._redis = redis

    def verdict(self, row: Row) -> list[str]:
        """What is wrong with a row; empty if everything is as it should be."""
        self.rows += 1
        path = list(sys.path)
        try:
            return self._refusals(row) if row.refused else [*self._with_one(row), *self._with_two(row)]
        finally:
            sys.path[:] = path
            forget(row.name)

    def _refusals(self, row: Row) -> list[str]:
        local, cluster = self.local(row), self.cluster(row, workers=1)
        problems = [
            f"{way} trains it, or says something else: {outcome.error}"
            for way, outcome in (("--local", local), ("the cluster", cluster))
            if row.refused not in outcome.error[0]
        ]
        # A cluster may say besides how often it tried.
        if not problems and not (local.error[0] in cluster.error[0] and local.error[1] == cluster.error[1]):
            problems = [f"different words:\n  --local:  {local.error}\n  cluster:  {cluster.error}"]
        return problems

    def _with_one(self, row: Row) -> list[str]:
        local, cluster = self.local(row), self.cluster(row, workers=1)
        return [f"one worker: {text}" for text in COMPARE[row.one](row, local, cluster)]

    def _with_two(self, row: Row) -> list[str]:
        if not row.two:
            return []
        if row.two != "equal":
            local, cluster = self.local(row), self.cluster(row, workers=2)
            return [f"two workers: {text}" for text in COMPARE[row.two](row, local, cluster)]
        # Each update takes two minibatches, and all are alike: half of the local run's are one update each.
        local = self.local(row, alike=True, halved=True)
        cluster = self.cluster(row, workers=2, alike=True, use_async=False, grads_to_wait=2)
        return [f"two workers: {text}" for text in differences(row, local, cluster, records=False)]

    def local(self, row: Row, *, alike: bool = False, halved: bool = False, **fields: Any) -> Outcome:
        """Trains in one process."""
        place = self._place()
        spec = self._spec(row, place, alike=alike, **fields)
        # --local refuses them: nothing travels, its step has one form, and its tables keep all rows.
        for name in ("wire_dtype", "xla", "table_admission", "table_eviction", "table_max_rows"):
            spec.pop(name, None)
        if halved:
            halve(spec)
        forget(row.name)
        events: list[dict[str, Any]] = []
        try:
            prepared = JobSpec.from_mapping(prepare(spec))
            run_local(prepared, prepared.output or place / "out", events.append)
            fetch(prepared.output, place / "out")
        except ElasticDLError as error:
            return Outcome(error=(readable(error.message, place), readable(error.fix, place)))
        except Exception as error:  # what a user would see as a traceback of ours
            return Outcome(error=(f"{CRASH} {type(error).__name__}: {readable(str(error), place)}", ""))
        done = events[-1]
        return Outcome(
            weights=read_weights(place / "out"),
            evaluations=tuple(e["metrics"] for e in events if e["event"] == "evaluation"),
            records=done["records"],
            skipped=skipped(done["skipped"]),
            steps=done["steps"],
            output=place / "out",
            history=(
                *(("evaluated", e["step"]) for e in events if e["event"] == "evaluation"),
                ("ended", done["reason"]),
                ("exported", exported(done["artifacts"])),
            ),
        )

    def cluster(
        self, row: Row, *, workers: int, alike: bool = False, during: During | None = None, **fields: Any
    ) -> Outcome:
        """Trains with a master, as many PS as workers, and workers; ``during`` it something else may be done."""
        place = self._place()
        spec = self._spec(row, place, alike=alike, **({"num_ps": workers} if workers > 1 else {}), **fields)
        return asyncio.run(self._job(row, spec, place, workers, during))

    def group(
        self, row: Row, *, members: int = 2, microbatches: int = 2, during: During | None = None, **fields: Any
    ) -> Outcome:
        """Trains with a master and a group, each of whose steps is a minibatch of the local run in small pieces."""
        place = self._place()
        group = {"distribution_strategy": "AllReduceStrategy", "microbatches": microbatches, "max_workers": members}
        spec = self._spec(row, place, alike=False, **{**group, **fields})
        del spec["num_ps"]
        return asyncio.run(self._job(row, spec, place, members, during))

    async def _job(self, row: Row, spec: dict[str, Any], place: Path, workers: int, during: During | None) -> Outcome:
        job_id = f"diff-{next(_numbers)}"
        async with InternalApi(job_id, spec) as api:
            api.target = workers
            processes = RealProcesses(place, job_id, int(spec.get("num_ps", 0)), SECRET, api.pulse, row.name)
            settings = MasterSettings(
                job_id=job_id,
                incarnation=0,
                listen=f"unix:{place}/master-0.sock",
                job_dir=place / "job",
                api_url=api.url,
                redis_url=self._redis.url,
                agent="unix:/nowhere",
                job_secret=SECRET,
            )
            runner = JobRunner(
                settings,
                processes,
                lambda epoch: RedisQueue(self._redis.url, job_id, epoch, timeout_s=5.0),
                asyncio.Event(),
                limits=Limits(heartbeat_s=0.2, recovery_s=0.0, drain_s=5.0),
                quit_at_once=lambda code: None,
            )
            running = asyncio.create_task(runner.run())
            try:
                if during is not None:
                    await during(api, processes)
                if not (await asyncio.wait({running}, timeout=JOB_S))[0]:
                    return Outcome(error=(f"{HUNG}: {api.state}, {json.dumps(api.status)[:2000]}", waiting()))
                running.result()
            finally:
                running.cancel()
                await asyncio.wait({running}, timeout=JOB_S)
                await processes.close()
        fetch(spec.get("output", ""), place / "job" / "artifacts" / "model")
        return outcome_of(api, place)

    def _place(self) -> Path:
        self.runs += 1
        place = self._folder / str(next(_numbers))
        (place / "job").mkdir(parents=True)
        (place / "zoo").mkdir()
        return place

    def _spec(self, row: Row, place: Path, *, alike: bool, **fields: Any) -> dict[str, Any]:
        from tests.differential.data import columns

        (place / "zoo" / f"{row.name}.py").write_text(row.source)
        data = (row.data or columns)(place, alike)
        spec = {
            **BASE,
            "model_def": f"{row.name}.{row.model}",
            "model_zoo": str(place / "zoo"),
            "export_formats": "keras,saved_model" if row.served else "keras",
            **data,
            **row.spec,
            **fields,
        }
        return {name: value for name, value in spec.items() if value is not None}


def fetch(output: str, folder: Path) -> None:
    """Copies what a job has put into a store, but for its checkpoints."""
    if not is_url(output):
        return
    store = ObjectStore(output)
    for name in store.sizes():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(store.read(name))


def waiting() -> str:
    """Where each task of this event loop waits, for a master that does not end."""
    lines = []
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        frames = [f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}" for frame in task.get_stack()]
        lines.append(f"{task.get_name()}: {' < '.join(frames)}")
    return "; ".join(lines)


def outcome_of(api: InternalApi, place: Path) -> Outcome:
    """What the api has heard of a job that has ended."""
    if not api.state.succeeded:
        detail = api.detail
        message = str(detail.get("message", f"{api.state}: {detail}"))
        return Outcome(error=(readable(message, place), readable(str(detail.get("fix", "")), place)))
    output = place / "job" / "artifacts" / "model"
    return Outcome(
        weights=read_weights(output),
        evaluations=tuple(e["metrics"] for e in sorted(api.evaluations, key=lambda e: e["number"])),
        records=trained_records(api.status),
        skipped=skipped(api.status.get("skipped", [])),
        steps=int(api.status.get("model_version", 0)),
        output=output,
        history=(
            *(("evaluated", e["model_version"]) for e in sorted(api.evaluations, key=lambda e: e["number"])),
            ("ended", api.reason),
            ("exported", exported(api.artifacts)),
        ),
        told=tuple((str(event["kind"]), str(event["message"])) for event in api.events),
    )


def skipped(entries: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """What was passed over, as reports have it."""
    return {(entry["of"], entry["reason"]): entry["records"] for entry in entries}


def trained_records(status: Mapping[str, Any]) -> int:
    """Records that are in the model: of those that are done, all that were not passed over."""
    left_out = sum(records for (of, _), records in skipped(status.get("skipped", [])).items() if of == "main")
    return int(status["progress"]["records_done"]) - left_out


def exported(artifacts: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of what was exported, without the folders that they lie in."""
    return tuple(sorted(str(entry["name"]).removeprefix("model/") for entry in artifacts))


def halve(spec: dict[str, Any]) -> None:
    """Keeps the first half of the training data, which is as many minibatches as two workers make updates of."""
    epochs = spec["num_epochs"]
    if epochs % 2 == 0:
        spec["num_epochs"] = epochs // 2
        return
    raise ValueError("give an even number of epochs")


def readable(text: str, place: Path) -> str:
    """Words without what differs from run to run: folders, addresses of objects and numbers of functions."""
    # Code that TensorFlow has converted before keeps the place where it met it first.
    text = re.sub(rf"{re.escape(str(place.parent))}/\d+|/\S*/jobs/job-\w+/code", "PLACE", text)
    return re.sub(r"0x[0-9a-f]+|_\d+\]", "...", text)


def read_weights(output: Path) -> Weights:
    """Everything that an export holds, by name."""
    weights: Weights = {}

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            weights[name] = np.asarray(item)

    if (output / "model.keras").is_file():
        with zipfile.ZipFile(output / "model.keras") as archive:
            held = io.BytesIO(archive.read("model.weights.h5"))
        with h5py.File(held) as file:
            file.visititems(take)
    if (output / "model.safetensors").is_file():
        from safetensors.numpy import load_file

        weights |= load_file(output / "model.safetensors")
    readme = output / "README.json"
    tables = json.loads(readme.read_text())["tables"] if readme.is_file() else {}
    for name, entry in tables.items():
        with np.load(output / entry["file"]) as held:
            order = np.argsort(held["ids"])
            weights[f"table {name}: ids"] = held["ids"][order]
            weights[f"table {name}: rows"] = held["vectors"][order]
    if not (output / "model.keras").is_file() and (output / "saved_model").is_dir():
        weights |= saved_variables(output / "saved_model", with_tables=bool(weights))
    return weights


def saved_variables(saved_model: Path, *, with_tables: bool) -> Weights:
    """The model's variables in a SavedModel, without the rows of tables, which are compared by their ids.

    Keras numbers them as they come, so they go by form and size here.
    """
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(saved_model / "variables" / "variables"))
    names = list(reader.get_variable_to_dtype_map())
    of_model = [name for name in names if name.startswith("variables/")]
    if not of_model and not with_tables:
        of_model = names  # Keras 2 makes no such list; rows of tables are among the others, in any order
    values = [np.asarray(reader.get_tensor(name)) for name in of_model]
    numbers = [value for value in values if value.dtype.kind in "fiub"]
    numbers.sort(key=lambda value: (value.shape, str(value.dtype), float(value.sum())))
    return {f"variable {index}": value for index, value in enumerate(numbers)}


def differences(row: Row, local: Outcome, cluster: Outcome, *, records: bool = True) -> list[str]:
    """Where two outcomes are not equal."""
    if local.error[0] or cluster.error[0]:
        return [f"{way} failed: {o.error}" for way, o in (("--local", local), ("cluster", cluster)) if o.error[0]]
    problems = []
    if records and row.counts and local.records != cluster.records:
        problems.append(f"{local.records} records locally, {cluster.records} on the cluster")
    if local.skipped != cluster.skipped:
        problems.append(f"passed over locally: {local.skipped}, on the cluster: {cluster.skipped}")
    if not local.weights and row.spec.get("export_formats") != "":
        problems.append("nothing was exported")
    if set(local.weights) != set(cluster.weights):
        problems.append(f"other weights: {sorted(set(local.weights) ^ set(cluster.weights))}")
    for name in sorted(set(local.weights) & set(cluster.weights)):
        if row.loose and re.search(row.loose, name):
            continue
        problems += _difference(name, local.weights[name], cluster.weights[name], row.tolerance)
    problems += _metric_differences(row, local, cluster) if records else _last_metrics_differ(local, cluster)
    if row.served and not problems:
        problems += _predictions_differ(local, cluster)
    return problems


def _difference(name: str, mine: Any, other: Any, tolerance: float) -> list[str]:
    if mine.shape != other.shape or mine.dtype != other.dtype:
        return [f"{name}: {mine.dtype}{list(mine.shape)} and {other.dtype}{list(other.shape)}"]
    if mine.dtype.kind not in "fiub":
        return [] if (mine == other).all() else [f"{name}: {mine} and {other}"]
    if not mine.size:
        return []
    a, b = np.asarray(mine, np.float64), np.asarray(other, np.float64)
    allowed = tolerance * max(1.0, float(np.abs(a).max())) if mine.dtype.kind == "f" else 0.0
    gap = np.abs(a - b)
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        return [f"{name}: not all are numbers"]
    worst = int(gap.argmax())
    if gap.max() <= allowed:
        return []
    return [f"{name}{list(mine.shape)}: {gap.max():.3g} apart, {a.ravel()[worst]:.8g} and {b.ravel()[worst]:.8g}"]


def _metric_differences(row: Row, local: Outcome, cluster: Outcome) -> list[str]:
    mine, others = len(local.evaluations), len(cluster.evaluations)
    if others != mine and not (row.trains_on and others <= mine):
        return [f"{mine} evaluations locally, {others} on the cluster"]
    if not row.trains_on:
        pairs = list(zip(local.evaluations, cluster.evaluations, strict=True))
    else:
        # What falls due in the midst of an epoch is evaluated while training goes on: later, or with the next one.
        known = dict(zip(local.evaluated, local.evaluations, strict=True))
        made = zip(cluster.evaluated, cluster.evaluations, strict=True)
        pairs = [(known[version], metrics) for version, metrics in made if version in known]
    problems = [problem for number, pair in enumerate(pairs, 1) for problem in _differ(number, *pair)]
    return problems or _last_metrics_differ(local, cluster)


def _last_metrics_differ(local: Outcome, cluster: Outcome) -> list[str]:
    if bool(local.evaluations) != bool(cluster.evaluations):
        return [f"{len(local.evaluations)} evaluations locally, {len(cluster.evaluations)} on the cluster"]
    return (
        _differ(len(local.evaluations), local.evaluations[-1], cluster.evaluations[-1]) if local.evaluations else []
    )


def _differ(number: int, mine: Mapping[str, float], other: Mapping[str, float]) -> list[str]:
    if set(mine) != set(other):
        return [f"evaluation {number}: {sorted(mine)} and {sorted(other)}"]
    return [
        f"evaluation {number}: {name} is {mine[name]} and {other[name]}"
        for name in mine
        if not np.isclose(float(mine[name]), float(other[name]), rtol=1e-5, atol=1e-5, equal_nan=True)
    ]


def _predictions_differ(local: Outcome, cluster: Outcome) -> list[str]:
    from tests.differential.data import predictions

    mine, other = predictions(local.output), predictions(cluster.output)
    gap = max((float(np.abs(a - b).max()) for a, b in zip(mine, other, strict=True)), default=float("nan"))
    return [] if gap <= EQUAL * 10 else [f"predictions of the exports are {gap:.3g} apart"]


def form_differences(row: Row, local: Outcome, cluster: Outcome) -> list[str]:
    """Where two outcomes differ in what does not depend on chance: records, names, shapes, numbers that are none."""
    if local.error[0] or cluster.error[0]:
        return differences(row, local, cluster)
    problems = []
    if local.records != cluster.records:
        problems.append(f"{local.records} records locally, {cluster.records} on the cluster")
    if {n: w.shape for n, w in local.weights.items()} != {n: w.shape for n, w in cluster.weights.items()}:
        problems.append(f"other weights: {sorted(set(local.weights) ^ set(cluster.weights))}")
    bad = [name for name, w in cluster.weights.items() if w.dtype.kind == "f" and not np.isfinite(w).all()]
    return problems + [f"{name}: not all are numbers" for name in bad]


def distances(row: Row, local: Outcome, cluster: Outcome) -> list[str]:
    """Where two outcomes are not even alike: forms, counts, or a model that has learned much less."""
    problems = form_differences(row, local, cluster)
    if not local.evaluations or not cluster.evaluations:
        return [*problems, "rows that are close need validation data"]
    first, mine, other = (
        float(e["loss"]) for e in (local.evaluations[0], local.evaluations[-1], cluster.evaluations[-1])
    )
    if not other <= mine + 0.5 * max(first - mine, 0.0) + 0.1 * abs(mine):
        problems.append(f"the loss went from {first:.4g} to {mine:.4g} locally, and to {other:.4g} on the cluster")
    return problems


COMPARE: Mapping[str, Callable[[Row, Outcome, Outcome], list[str]]] = {
    "equal": differences,
    "close": distances,
    "form": form_differences,
}
"""Verdicts, and what finds where they do not hold."""


def configure() -> None:
    """Gives TensorFlow the threads that workers ask for, so that asking changes nothing.

    Raises:
        RuntimeError: TensorFlow has run something in this process.
    """
    from elasticdl_worker.trainers.tensorflow import framework

    framework.configure(max(1, len(os.sched_getaffinity(0)) // 2))


def clean(folder: Path) -> None:
    """Removes what rows have left."""
    shutil.rmtree(folder, ignore_errors=True)
