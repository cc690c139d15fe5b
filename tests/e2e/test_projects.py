"""Projects as a newcomer makes them: in a plain loop, with ``--local`` and with two workers they learn as much.

Each is trained with three seeds in each way. What the seeds of the plain loop differ by is no difference.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.local_cluster import EXAMPLES, ROOT, Cluster
from tests.e2e.projects import data
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
_PROJECTS = ROOT / "tests" / "e2e" / "projects"
_SEEDS = ("0", "1", "2")
_BATCH = "64"


@dataclass(frozen=True)
class Project:
    """A model and data of its kind.

    Attributes:
        metric: what is compared; a mean error is the better the smaller it is.
        epochs: how often the data are gone through.
        records: of the training data that are drawn; 0 where a script of the example makes them.
        ends: how names of its files end.
        params: reader parameters.
        example: the example that it is, else the module is in ``projects``.
        strategy: flags that choose one; by default it is chosen.
    """

    metric: str
    epochs: int
    records: int = 0
    ends: str = ""
    params: str = ""
    example: str = ""
    strategy: tuple[str, ...] = ("--distribution_strategy", "auto")


_SERVERS = ("--distribution_strategy", "ParameterServerStrategy")
PROJECTS = {
    "orders": Project("auc", 2, 4000, ".csv"),
    "fraud": Project("auc", 3, 6000, ".csv"),
    "reviews": Project("accuracy", 4, 2000, ".txt", "kind=text"),
    "shop": Project("auc", 3, 12000, ".csv", strategy=_SERVERS),
    "characters": Project("accuracy", 4, 6000, ".txt", "kind=text;window=17;stride=4"),
    "forecast": Project("mae", 4, params="window=29;stride=1;group_by=shop", example="forecast_torch/make_series.py"),
    "images": Project("accuracy", 4, example="images_torch/make_images.py"),
}
_TORCH = {"fraud", "characters", "forecast", "images"}


def _data(name: str, project: Project, folder: Path, cluster: Cluster) -> tuple[Path, str, str]:
    """Makes the data; returns the module, and where data to train and to validate are."""
    if project.example:
        script = EXAMPLES / project.example
        made = cluster.run(sys.executable, str(script), str(folder))
        assert made.returncode == 0, made.stderr
        return script.parent / "zoo" / f"{name}.py", str(folder / "train"), str(folder / "validation")
    module = _PROJECTS / f"{name}.py"
    train, validation = (folder / f"{part}{project.ends}" for part in ("train", "validation"))
    for seed, (part, count) in enumerate(((train, project.records), (validation, project.records // 2))):
        part.write_text("".join(f"{line}\n" for line in getattr(data, name)(count, random.Random(seed))))
    return module, str(train), str(validation)


@pytest.mark.parametrize("name", [pytest.param(one, marks=NEEDS_TORCH if one in _TORCH else ()) for one in PROJECTS])
def test_a_project_learns_as_much_as_in_a_plain_loop(name: str, cluster: Cluster, tmp_path: Path) -> None:
    project = PROJECTS[name]
    module, train, validation = _data(name, project, tmp_path, cluster)
    epochs = str(project.epochs)
    script = str(ROOT / "tests" / "e2e" / "plain_loop.py")
    plain = cluster.run(
        *(sys.executable, script, str(module), train, validation, epochs, _BATCH, project.params, *_SEEDS)
    )
    assert plain.returncode == 0, plain.stderr[-3000:]
    found = {"plain": [json.loads(line)[project.metric] for line in plain.stdout.splitlines()[-len(_SEEDS) :]]}
    flags = ["--model_zoo", str(module.parent), "--model_def", f"{name}.forward", "--num_epochs", epochs]
    flags += ["--training_data", train, "--validation_data", validation, "--minibatch_size", _BATCH]
    flags += ["--data_reader_params", project.params] if project.params else []
    jobs = [
        cluster.submit(*flags, "--job_name", name, "--seed", seed, "--num_workers", "2", *project.strategy)
        for seed in _SEEDS
    ]
    found["local"] = [_locally(cluster, project.metric, *flags, "--seed", seed) for seed in _SEEDS]
    ended = [cluster.wait(job, timeout=600) for job in jobs]
    assert {job["state"] for job in ended} == {"SUCCEEDED"}, [job.get("error") for job in ended]
    found["cluster"] = [job["status"]["metrics"][project.metric] for job in ended]
    wanted = statistics.fmean(found["plain"])
    room = max(max(found["plain"]) - min(found["plain"]), 0.03 * wanted)
    for way in ("local", "cluster"):
        reached = statistics.fmean(found[way])
        worse = reached - wanted if project.metric == "mae" else wanted - reached
        assert worse <= room, found
    print(name, found)


def _locally(cluster: Cluster, metric: str, *flags: str) -> float:
    output = cluster.directory / "of-a-local-run"
    done = cluster.cli("train", "--local", *flags, "--export_formats", "", "--output", str(output))
    (said,) = re.findall(rf"^done: .*?, {metric} ([\d.]+)", done.stdout, flags=re.MULTILINE)
    return float(said)


_WITHOUT_ELASTICDL = {
    "ElasticDataset(transform=parse)": "Records()",
    "import elasticdl.torch": """from pathlib import Path


class Records(list):
    batch_size = 64

    def __init__(self):
        reader = create_data_reader(TRAIN)
        super().__init__(parse(one) for shard in reader.create_shards() for one in reader.read_records(shard))


def run(train):
    for _ in range(8):
        train()
""",
    "elasticdl.torch.Records": "Records",
    "batch_size=dataset.batch_size)": "batch_size=64, shuffle=True)",
    "elasticdl.torch.distributed_optimizer(": "(lambda optimizer, model: optimizer)(",
    "elasticdl.torch.run(": "run(",
    "elasticdl.torch.output_dir()": "Path(__file__).parent",
}


@NEEDS_TORCH
def test_a_loop_of_ones_own_learns_as_much_as_without_its_four_lines(
    cluster: Cluster, digits: Path, tmp_path: Path
) -> None:
    """Workers of a cluster give the bits of a local run (``test_own_loops``)."""
    found: dict[str, list[float]] = {"plain": [], "local": []}
    more = ("--validation_data", str(digits / "validation"))
    for seed in _SEEDS:
        script = tmp_path / f"train_{seed}.py"
        elastic = _changed(EXAMPLES / "own_loop_torch" / "train.py", {"manual_seed(1)": f"manual_seed({seed})"})
        script.write_text(elastic)
        flags = ("--num_epochs", "8", "--minibatch_size", "64", "--training_data", str(digits / "train"))
        done = cluster.cli("run", "--local", str(script), *flags, "--output", str(tmp_path / "out"), "--", *more)
        found["local"].append(float(done.stderr.rpartition("accuracy ")[2].split()[0]))
        plain = _changed(script, _WITHOUT_ELASTICDL | {"TRAIN": repr(str(digits / "train"))})
        script.write_text(plain)
        done = cluster.run(sys.executable, str(script), *more)
        assert done.returncode == 0, done.stderr
        found["plain"].append(float(done.stdout.rpartition("accuracy ")[2]))
    assert statistics.fmean(found["local"]) >= statistics.fmean(found["plain"]) - 0.02, found


def _changed(script: Path, changes: dict[str, str]) -> str:
    """A script with texts replaced, each of which is there."""
    text = script.read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text
