"""Compares the choice of ``--distribution_strategy auto`` for twelve models with the faster of both strategies.

./dev bench auto [--quick] [--rounds 3] [--models a,b]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import Report, Sample
from benchmarks.training.cluster import MANY_EPOCHS, Cluster, JobSide
from benchmarks.training.data import ZOO, generated
from benchmarks.training.setting import setting
from benchmarks.training.sides import Side, take_turns
from elasticdl.data import generate

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STRATEGIES = {"ParameterServerStrategy": "servers", "AllReduceStrategy": "group"}
WORKERS = 2
GOAL = 0.9
_CHOICE_S = 240.0
ABOUT = """\
Each model is submitted with `auto` and {workers} workers, until the choice is made; then both strategies train it,
with the same minibatch and their other options as they are by default, and records a second are counted once all
workers train. *Chosen / best* is the speed of the strategy that was chosen over that of the faster one: the median
over {rounds} rounds, in turns, of {seconds:g} s each. An update has the same number of records by both."""


@dataclass(frozen=True)
class Model:
    """A model and what it is trained on.

    Attributes:
        name: for the table.
        data: which data, by the name of what makes it.
        zoo: its folder; that of the benchmarks by default.
        fields: of the job's specification.
    """

    name: str
    data: str
    model_def: str
    minibatch: int
    zoo: Path = ZOO
    fields: Mapping[str, Any] = field(default_factory=dict)

    def specification(self, data: Path) -> dict[str, Any]:
        """Of a job that trains it until it is cancelled."""
        return {
            "name": self.name.replace("_", "-"),
            "model_zoo": self.zoo,
            "model_def": self.model_def,
            "training_data": str(data),
            "minibatch_size": self.minibatch,
            "num_epochs": MANY_EPOCHS,
            "export_formats": "",
            **self.fields,
        }


def _example(name: str, data: str, model_def: str, minibatch: int, **fields: Any) -> Model:
    return Model(name, data, model_def, minibatch, EXAMPLES / name / "zoo", fields)


def _clicks(name: str, model: str, ids: int, dim: int) -> Model:
    return Model(name, "frequent", f"{model}.forward", 512, fields={"model_params": {"ids": ids, "dim": dim}})


MODELS = (
    _example("digits", "digits", "digits.forward", 32),
    _example("digits_torch", "digits", "digits.forward", 32),
    _example("mnist", "mnist", "mnist.forward", 32),
    _example("iris", "iris", "iris.custom_model", 16),
    _example("resnet", "textures", "resnet.forward", 32),
    _example("images_torch", "files", "images.forward", 32),
    _example("wide_deep", "few_ids", "wide_deep.forward", 128),
    _example("xdeepfm", "few_ids", "xdeepfm.forward", 128),
    _example("deepfm", "many_ids", "deepfm.forward", 512),
    _example("deepfm_torch", "many_ids", "deepfm.forward", 512),
    _clicks("deepfm_20_mb", "deepfm", 80_000, 64),
    _clicks("deepfm_40_mb", "deepfm", 160_000, 64),
)


def data_makers(folder: Path) -> dict[str, Callable[[], Path]]:
    """Makers of each data set; each returns where the training data lie."""

    def clicks(name: str, ids: int) -> Path:
        return generate.write_clicks(folder / name, 200_000, ids=ids, zipf=1.3).train

    def files() -> Path:
        script = EXAMPLES / "images_torch" / "make_images.py"
        subprocess.run([sys.executable, str(script), str(folder / "files")], check=True, timeout=120)
        return folder / "files" / "train"

    def frequent() -> Path:
        generated(vocabulary=80_000).write_records(folder / "frequent", least=200_000)
        return folder / "frequent" / "train"

    return {
        "digits": lambda: generate.write_digits(folder / "digits").train,
        "mnist": lambda: generate.write_mnist(folder / "mnist").train,
        "iris": lambda: generate.write_iris(folder / "iris").train,
        "textures": lambda: generate.write_textures(folder / "textures", 4000).train,
        "files": files,
        "few_ids": lambda: clicks("few_ids", 5000),
        "many_ids": lambda: clicks("many_ids", 1_000_000),
        "frequent": frequent,
    }


def choice_of(cluster: Cluster, specification: Mapping[str, Any]) -> Mapping[str, Any]:
    """The choice of ``auto`` for a job, which is cancelled then.

    Raises:
        RuntimeError: it ended before, or chose nothing in time.
    """
    client = cluster.client
    job = client.submit(
        **{**specification, "distribution_strategy": "auto", "min_workers": WORKERS, "max_workers": WORKERS}
    )
    until = time.monotonic() + _CHOICE_S
    try:
        while time.monotonic() < until:
            strategy = client.get(job.id).raw["status"].get("strategy")
            if strategy:
                return dict(strategy)
            time.sleep(0.1)
        raise RuntimeError(
            f"nothing was chosen for job {job.id} in {_CHOICE_S:g} s; see {cluster.folder}/jobs/{job.id}"
        )
    finally:
        client.cancel(job.id)
        client.wait(job.id, _CHOICE_S)


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure once, briefly")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side (default: 3)")
    parser.add_argument("--models", type=lambda text: text.split(","), default=[], help="these only")
    options = parser.parse_args()
    wrong = sorted(set(options.models) - {model.name for model in MODELS})
    if wrong:
        raise SystemExit(f"there are no models {wrong}; there are: {', '.join(model.name for model in MODELS)}")
    with setting(options, WORKERS) as here:
        about = ABOUT.format(workers=WORKERS, rounds=here.rounds, seconds=here.seconds)
        report = Report("auto", "The strategy that auto chooses", about)
        made: dict[str, Path] = {}
        rows, ratios = [], []
        for model in MODELS:
            if options.models and model.name not in options.models:
                continue
            if model.data not in made:
                made[model.data] = data_makers(here.folder)[model.data]()
            specification = model.specification(made[model.data])
            choice = choice_of(here.cluster, specification)
            report.say(f"{model.name}: {choice['chosen']}: {choice['reason']}")
            sides: list[Side] = [
                JobSide(name, f"{model.name}, {strategy}", here.cluster, WORKERS, {**specification, **_of(strategy)})
                for strategy, name in STRATEGIES.items()
            ]
            found = take_turns(sides, here.rounds, here.seconds, report.say)
            chosen, other = _sorted(choice["chosen"])
            if chosen not in found:
                raise SystemExit(f"{model.name} cannot be trained by what was chosen for it")
            # What the other strategy cannot train, it is not faster at.
            ratio = found[chosen].ratios(found[other]).median if other in found else float("inf")
            ratios.append(min(1.0, ratio))
            speeds = [_speed(found.get(name)) for name in STRATEGIES.values()]
            rows.append([model.name, chosen, *speeds, min(1.0, ratio), choice["reason"]])
        report.table(["model", "chosen", "servers, samples/s", "group, samples/s", "chosen / best", "why"], rows)
        report.target("auto_models", len(ratios), 12)
        report.target("auto_chosen_of_best", min(ratios), GOAL)
        report.write()
    return 0


def _of(strategy: str) -> dict[str, Any]:
    return {"distribution_strategy": strategy}


def _sorted(chosen: str) -> tuple[str, str]:
    """The side that was chosen, and the other one."""
    first = STRATEGIES[chosen]
    return first, next(name for name in STRATEGIES.values() if name != first)


def _speed(sample: Sample | None) -> str:
    return "-" if sample is None else f"{sample.median:,.0f} ({sample.spread:.0%})"


if __name__ == "__main__":
    sys.exit(main())
