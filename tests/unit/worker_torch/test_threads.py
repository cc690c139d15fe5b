"""With how many threads a worker computes: what the user says, else what follows from the model and the minibatch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elasticdl_worker import main
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.framework import Preparation
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.trainers.torch.implementation import TorchFramework
from elasticdl_worker.trainers.torch.model.operation_work import SMALL, OperationWork, one_thread_is_better

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def mean_work(net: nn.Module, sample: torch.Tensor, records: int) -> float:
    work = OperationWork()
    with torch.no_grad(), work:
        net.eval()(sample)
    return work.mean(records / len(sample))


def hidden(width: int) -> nn.Module:
    layers = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), *layers, nn.Linear(width, 1))


def test_work_is_that_of_products_and_elements_which_threads_would_share() -> None:
    records, width = 512, 128
    products = [2 * records * 10 * width, *[2 * records * width * width] * 3]
    elements = [16 * records * width] * 4
    expected = sum([*products, *elements]) / 8  # the last layer is too small to be shared
    assert mean_work(hidden(width), torch.zeros(4, 10), records) == pytest.approx(expected)


@pytest.mark.parametrize("records", [1, 3, 512])
def test_work_does_not_depend_on_how_many_records_were_looked_at(records: int) -> None:
    whole = mean_work(hidden(64), torch.zeros(512, 10), 512)
    assert mean_work(hidden(64), torch.zeros(records, 10), 512) == pytest.approx(whole)


def test_small_operations_leave_the_second_of_two_cores_alone_and_large_ones_take_it() -> None:
    small, large = (mean_work(hidden(width), torch.zeros(4, 10), 512) for width in (64, 512))
    assert small < SMALL < large
    assert [one_thread_is_better(small, threads) for threads in (1, 2, 3, 16)] == [False, True, False, False]
    assert not one_thread_is_better(large, 2)


@pytest.mark.parametrize(
    "net",
    [nn.LSTM(8, 16, batch_first=True), nn.TransformerEncoderLayer(16, 2, batch_first=True)],
    ids=["recurrent", "attention"],
)
def test_what_cannot_be_counted_counts_as_large(net: nn.Module) -> None:
    width = 8 if isinstance(net, nn.LSTM) else 16
    work = mean_work(net, torch.zeros(4, 5, width), 512)
    assert math.isinf(work)
    assert not one_thread_is_better(work, 2)


def prepare(spec: Any) -> None:
    framework = TorchFramework()
    framework.configure(2)
    module = framework.load_module(spec, Path(spec.model_zoo))
    sources = JobSources(framework, spec, module)
    framework.prepare(Preparation(spec, module, sources.source(sources.main), framework.callbacks_of(module, spec)))


def test_a_small_model_beside_servers_computes_with_one_thread(make_spec: Any) -> None:
    prepare(make_spec())
    assert torch.get_num_threads() == 1


def test_what_the_user_says_holds(make_spec: Any) -> None:
    prepare(make_spec(worker_threads=2))
    assert torch.get_num_threads() == 2


def test_a_worker_takes_its_share_of_the_cores_or_what_the_user_says(make_spec: Any) -> None:
    spec = make_spec(max_workers=1)
    assert main._threads(spec) == len(os.sched_getaffinity(0))
    assert main._threads(replace(spec, worker_threads=3)) == 3
    group = replace(spec, distribution_strategy="AllReduceStrategy", microbatches=4, worker_threads=3)
    assert main._threads(group) == 3


def test_a_run_in_one_process_takes_as_many_threads_as_the_user_says(make_spec: Any, tmp_path: Path) -> None:
    other = torch.get_num_threads() + 1
    events: list[dict[str, Any]] = []
    run_local(make_spec(worker_threads=other, max_steps=1), tmp_path, events.append)
    assert events[-1]["steps"] == 1
    assert torch.get_num_threads() == other
