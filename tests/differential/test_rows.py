"""``--local``, one worker, and two workers with two PS: the same model, or the same refusal."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.differential.driver import Bench, Row
from tests.differential.legacy import LegacyBench
from tests.differential.rows import LEGACY_ROWS, ROWS, TORCH_ROWS, WHOLE_CLUSTER_ROWS
from tests.differential.whole_cluster import WholeClusterBench
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
OF_EACH_FAMILY = 2
"""Rows of each family that take turns in the gate; the rest is slow."""


def marked(rows: Sequence[Row]) -> list[object]:
    """Rows as parameters of a test: of each family the first two take turns, all others are slow."""
    seen: Counter[str] = Counter()
    families = Counter(row.family for row in rows)
    parameters = []
    for row in rows:
        seen[row.family] += 1
        marks = []
        if seen[row.family] > OF_EACH_FAMILY:
            marks = [pytest.mark.slow]
        elif families[row.family] > 1:
            place = zlib.crc32(row.family.encode()) + seen[row.family]
            marks = [pytest.mark.rotates(turns=OF_EACH_FAMILY, place=place)]
        parameters.append(pytest.param(row, id=row.name, marks=marks))
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
