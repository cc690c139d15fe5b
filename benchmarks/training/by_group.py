"""Training by AllReduce against DistributedDataParallel and against Keras, at the same number of records an update.

``./dev bench allreduce`` measures it along with the sums themselves.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from benchmarks.harness import Report, Sample
from benchmarks.training.cluster import JobSide
from benchmarks.training.images import group_fields, write_records
from benchmarks.training.processes import Team
from benchmarks.training.setting import Setting, setting
from benchmarks.training.sides import Side

BATCH, MINIBATCHES = 128, 4
WORKERS = 2
WARM_UP_S = 2.0
DDP_GOAL, FIT_GOAL = 0.98, 0.95
_ABOUT = """## Training

A convolutional network of 212,000 parameters by Adam, {batch} images an update: samples a second. Our jobs run on a
cluster of their own, with all that belongs to one, and read records; the peers have their images in memory.
*Deterministic* jobs give the same bits whoever does the work; *fused* ones (`--deterministic false`) compute what a
worker has of an update in one pass. Each measurement begins with a model that has learned nothing, and lets it train
for {warm_up:g} s before counting: a step of PyTorch's takes less time the more the model has learned. Medians of
{rounds} measurements, in turns, of {seconds:g} s; a ratio is the median of the quotients of measurements of one
round."""


def compare_training(report: Report, *, quick: bool, rounds: int) -> None:
    """Adds the comparisons to a report.

    Args:
        report: the report.
        quick: measure once, briefly.
        rounds: measurements of each side.
    """
    options = argparse.Namespace(quick=quick, rounds=rounds, sides=[])
    cores = len(os.sched_getaffinity(0))
    with setting(options, WORKERS) as here:
        report.text(_ABOUT.format(batch=BATCH, rounds=here.rounds, seconds=here.seconds, warm_up=WARM_UP_S))
        _against_keras(here, report, cores)
        _against_ddp(here, report, max(1, cores // WORKERS))


def _against_keras(here: Setting, report: Report, threads: int) -> None:
    peer = {"batch": BATCH, "threads": threads}
    sides: list[Side] = [
        Team("fit", "Keras fit, one process", "benchmarks.peers.images_fit", [peer], here.folder, warm_up=WARM_UP_S),
        _job(here, "one", "1 worker, one minibatch an update", "images", 1, 1, deterministic=True),
        _job(
            here, "one_of_4", "1 worker, 4 minibatches, deterministic", "images", 1, MINIBATCHES, deterministic=True
        ),
        _job(here, "one_fused", "1 worker, 4 minibatches, fused", "images", 1, MINIBATCHES, deterministic=False),
    ]
    found = here.compare(report, sides)
    _ratios(report, found, sides, [("one", "fit"), ("one_fused", "fit"), ("one_of_4", "one_fused")])
    _target(report, found, "allreduce_one_member_of_keras_fit", "one", "fit", FIT_GOAL)
    _target(report, found, "allreduce_one_member_fused_of_keras_fit", "one_fused", "fit", FIT_GOAL)


def _against_ddp(here: Setting, report: Report, threads: int) -> None:
    common = {
        "batch": BATCH // WORKERS,
        "world": WORKERS,
        "store": str(here.folder / "ddp.store"),
        "threads": threads,
    }
    members = [{**common, "rank": rank} for rank in range(WORKERS)]
    model = "images_torch"
    sides: list[Side] = [
        Team(
            "ddp",
            "DDP over gloo, 2 processes",
            "benchmarks.peers.images_ddp",
            members,
            here.folder,
            warm_up=WARM_UP_S,
        ),
        _job(here, "fused", "2 workers, 4 minibatches, fused", model, WORKERS, MINIBATCHES, deterministic=False),
        _job(
            here, "exact", "2 workers, 4 minibatches, deterministic", model, WORKERS, MINIBATCHES, deterministic=True
        ),
    ]
    found = here.compare(report, sides)
    _ratios(report, found, sides, [("fused", "ddp"), ("exact", "fused"), ("exact", "ddp")])
    _target(report, found, "allreduce_fused_of_ddp", "fused", "ddp", DDP_GOAL)


def _job(
    here: Setting, name: str, label: str, model: str, workers: int, minibatches: int, *, deterministic: bool
) -> JobSide:
    data = here.folder / "images"
    if not data.exists():
        write_records(data)
    fields = group_fields(data, model, batch=BATCH, minibatches=minibatches, deterministic=deterministic)
    return JobSide(name, label, here.cluster, workers, fields, WARM_UP_S)


def _target(report: Report, found: dict[str, Sample], name: str, ours: str, theirs: str, goal: float) -> None:
    if {ours, theirs} <= found.keys():
        report.target(name, found[ours].over(found[theirs]), goal)


def _ratios(report: Report, found: dict[str, Sample], sides: Sequence[Side], pairs: list[tuple[str, str]]) -> None:
    """The ratios with their spread, those without a goal too: the cost of equal bits."""
    labels = {side.name: side.label for side in sides}
    rows = []
    for ours, theirs in pairs:
        if {ours, theirs} <= found.keys():
            ratios = found[ours].ratios(found[theirs])
            lowest, highest = min(ratios.values), max(ratios.values)
            rows.append([labels[ours], labels[theirs], ratios.median, f"{ratios.spread:.0%}", lowest, highest])
    report.table(["side", "against", "samples/s, ratio", "spread", "the lowest", "the highest"], rows)
