"""Writes the suite's README: ``python -m tests.differential.readme``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.differential.driver import Row
from tests.differential.rows import LEGACY_ROWS, ROWS, TORCH_ROWS, WHOLE_CLUSTER_ROWS

PAGE = Path(__file__).with_name("README.md")
_COLUMNS: tuple[tuple[str, Callable[[Row], bool]], ...] = (
    ("rows", lambda row: True),
    ("equal", lambda row: not row.refused and row.one == "equal"),
    ("close", lambda row: not row.refused and row.one == "close"),
    ("two workers equal", lambda row: not row.refused and row.two == "equal"),
    ("two workers close", lambda row: not row.refused and row.two == "close"),
    ("refused", lambda row: bool(row.refused)),
)
_HEAD = """# The differential suite

This page is made by `python -m tests.differential.readme` from the rows; a test compares it.

A *row* is a small model module with its data and options. Each is trained by `--local`, on a cluster with one worker,
and on a cluster with two workers and two parameter servers, by the same driver (`driver.py`), and what a user gets is
compared: the exported weights, the evaluations, the records that were trained and passed over, or the words of the
refusal.

- **equal**: one worker has the weights of `--local`, to 1e-6 of the largest element of each tensor (rows with
  lower precision say how much less).
- **close**: one worker learns as much, where results depend on chance or on when updates arrive.
- **two workers equal**: the same in synchronous mode with two workers, where each update is made of two equal
  minibatches; **two workers close**: asynchronously.
- **refused**: every way refuses the module with the same words and the same advice.

`test_complete.py` fails when Keras, the table of what is honoured (`elasticdl_core.contract`) or `JobSpec` has
something that no row names and no reason explains.

`grammar.py` draws further models, from styles, layers, optimizers with their options, schedules, losses, metrics,
readers, callbacks and options of the job. A failing one is made as small as possible.

## How to run it

TensorFlow's thread pools are sized as a worker does it, so the suite needs a process of its own:

```
./dev test tests/differential -m "not slow"    # the first rows of each family, and a few generated ones
./dev slow tests/differential                  # all others, and many generated ones
./dev test tests/differential -k NAME          # one row
```

## Rows
"""


def page() -> str:
    """The page as it should be."""
    rows = [*ROWS, *TORCH_ROWS, *LEGACY_ROWS, *WHOLE_CLUSTER_ROWS]
    families = list(dict.fromkeys(row.family for row in rows))
    lines = [("family", *(name for name, _ in _COLUMNS)), ("---", *("---:" for _ in _COLUMNS))]
    lines += [_line(family, [row for row in rows if row.family == family]) for family in families]
    lines.append(_line("**all**", rows))
    return f"{_HEAD}\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _line(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    counts = [sum(map(holds, rows)) for _, holds in _COLUMNS]
    return (name, *(str(count) if count else "" for count in counts))


if __name__ == "__main__":
    PAGE.write_text(page())
