"""Models and jobs that are drawn from a grammar agree in every way, as those that were written do."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings

from tests.differential.driver import Bench, Row
from tests.differential.grammar import generated_rows

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
FEW, MANY = 4, 60
_SLOW_STEPS = list(HealthCheck)


def check(bench: Bench, row: Row) -> None:
    """Fails if a row is not as it should be."""
    note(f"{row.spec}\n{row.source}")
    problems = bench.verdict(row)
    assert not problems, "\n".join(problems)


@pytest.mark.timeout(600)
@settings(
    max_examples=FEW,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=_SLOW_STEPS,
)
@given(row=generated_rows())
def test_a_few_models_that_are_always_the_same(bench: Bench, row: Row) -> None:
    check(bench, row)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(
    max_examples=MANY,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    print_blob=True,
    suppress_health_check=_SLOW_STEPS,
)
@given(row=generated_rows())
def test_many_models(bench: Bench, row: Row) -> None:
    check(bench, row)
