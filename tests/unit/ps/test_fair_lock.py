"""Pulls do not wait for the end of a push."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from elasticdl_core.model import InitializerSpec, OptimizerSpec, TableSpec
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.optimizers import Optimizer
from elasticdl_ps.store.fair_lock import FairLock
from elasticdl_ps.store.table import EmbeddingTable

pytestmark = pytest.mark.unit

_PATIENCE_S = 30.0


def test_a_reader_has_its_turn_after_the_block_that_it_came_in() -> None:
    optimizer = Optimizer(OptimizerSpec("sgd", {"learning_rate": 1.0}))
    table = EmbeddingTable(TableSpec("t", 2, InitializerSpec("zeros")), optimizer, load_kernels())
    ids = np.arange(100_000)
    inside, read = threading.Event(), threading.Event()
    blocks: list[bool] = []
    update = table._update

    def observed(*arguments: Any) -> None:
        if not blocks:
            inside.set()
            while not table._lock.wanted:
                pass
            blocks.append(True)
        else:
            blocks.append(read.wait(_PATIENCE_S))
        update(*arguments)

    table._update = observed
    out = np.empty((2, 2), np.float32)

    def reader() -> None:
        inside.wait(_PATIENCE_S)
        table.read(np.array([0, 99_999]), out)
        read.set()

    thread = threading.Thread(target=reader)
    thread.start()
    table.update(ids, np.ones((len(ids), 2), np.float32), optimizer.numbers(1))
    thread.join()
    assert blocks == [True] * 4
    # The first block was done, the last one was not.
    assert out.tolist() == [[-1, -1], [0, 0]]


def test_holders_of_the_lock_exclude_each_other() -> None:
    lock, total = FairLock(), [0]

    def add() -> None:
        for _ in range(3000):
            with lock:
                value = total[0]
                total[0] = value + 1

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == [12_000]
    assert not lock.wanted
