"""``--local``, one worker, and two workers with two PS: the same model, or the same refusal."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.differential.driver import Bench, Row
from tests.differential.rows import ROWS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
OF_EACH_FAMILY = 2


def sample() -> list[Row]:
    """The first rows of each family: what runs at each change."""
    seen: Counter[str] = Counter()
    chosen = []
    for row in ROWS:
        seen[row.family] += 1
        if seen[row.family] <= OF_EACH_FAMILY:
            chosen.append(row)
    return chosen


SAMPLE = sample()
REST = [row for row in ROWS if row not in SAMPLE]


@pytest.mark.parametrize("row", SAMPLE, ids=str)
def test_local_and_cluster_agree(bench: Bench, row: Row) -> None:
    problems = bench.verdict(row)
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize("row", REST, ids=str)
def test_local_and_cluster_agree_on_the_rest(bench: Bench, row: Row) -> None:
    problems = bench.verdict(row)
    assert not problems, "\n".join(problems)
