"""Inputs of benchmarks."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray


def parse(description: str | None, **numbers: int) -> argparse.Namespace:
    """Parses the command line of a benchmark.

    Args:
        description: the module's docstring.
        numbers: options that take a number, with their defaults.

    Returns:
        The options; ``quick`` says that a short run is wanted.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="a short run, to see that all works")
    for name, default in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    return parser.parse_args()


def zipf_ids(space: int, count: int, seed: int, *, exponent: float = 1.0) -> NDArray[np.int64]:
    """Ids as clicks have them: a few very often, most hardly ever; which are often is random.

    Args:
        space: ids are below this.
        count: how many, with repetitions.
        seed: of the random numbers.
        exponent: the frequency of the id of rank ``k`` goes with ``k ** -exponent``.

    Returns:
        int64 ``[count]``.
    """
    random = np.random.default_rng(seed)
    if exponent == 1.0:
        ranks = np.exp(random.uniform(0, np.log(space), count)).astype(np.int64) - 1
    else:
        power = 1.0 - exponent
        ranks = ((random.uniform(size=count) * (space**power - 1) + 1) ** (1 / power)).astype(np.int64) - 1
    ranks = np.minimum(ranks, space - 1)
    shuffled: Any = random.permutation(space).astype(np.int64)
    chosen: NDArray[np.int64] = shuffled[ranks]
    return chosen
