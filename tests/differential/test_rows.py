"""``--local``, one worker, and two workers with two PS: the same model, or the same refusal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.differential.driver import Bench, Row
from tests.differential.legacy import LegacyBench
from tests.differential.rows import LEGACY_ROWS, ROWS, TORCH_ROWS, WHOLE_CLUSTER_ROWS
from tests.differential.whole_cluster import WholeClusterBench
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
OF_EACH_FAMILY = 2
"""Rows of each family that run at each change; the rest is slow."""


def marked(rows: Iterable[Row]) -> list[object]:
    """Rows as parameters of a test, all but the first of each family marked as slow."""
    seen: Counter[str] = Counter()
    parameters = []
    for row in rows:
        seen[row.family] += 1
        slow = [pytest.mark.slow] if seen[row.family] > OF_EACH_FAMILY else []
        parameters.append(pytest.param(row, id=row.name, marks=slow))
    return parameters


@pytest.mark.parametrize("row", marked(ROWS))
def test_local_and_cluster_agree(bench: Bench, row: Row) -> None:
    problems = bench.verdict(row)
    assert not problems, "\n".join(problems)


@NEEDS_TORCH
@pytest.mark.parametrize("row", marked(TORCH_ROWS))
def test_local_and_cluster_agree_in_pytorch(bench: Bench, row: Row) -> None:
    problems = bench.verdict(row)
    assert not problems, "\n".join(problems)


@pytest.mark.xdist_group("Keras 2")
@pytest.mark.parametrize("row", marked(LEGACY_ROWS))
def test_local_and_cluster_agree_with_keras_2(legacy: LegacyBench, row: Row) -> None:
    problems = legacy.verdict(row)
    assert not problems, "\n".join(problems)


@pytest.mark.e2e
@pytest.mark.xdist_group("cluster")
@pytest.mark.parametrize("row", marked(WHOLE_CLUSTER_ROWS))
def test_local_and_cluster_agree_on_the_command_line(whole_cluster: WholeClusterBench, row: Row) -> None:
    problems = whole_cluster.verdict(row)
    assert not problems, "\n".join(problems)
