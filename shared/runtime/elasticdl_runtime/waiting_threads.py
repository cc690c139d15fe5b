"""Waiting of the threads of a pool that computes for one another.

Those of OpenMP, which PyTorch computes with, turn in a loop for a while before they sleep. On a machine that other
processes use as well that takes the time which the thread that they wait for needs: a step of a small model took 60
times as long (performance log, 46). So they sleep soon here.
"""

from __future__ import annotations

from collections.abc import Mapping

TURNS = "1000"
"""What GNU's OpenMP takes itself, where it knows that there are more threads than cores: some microseconds."""
CHOICES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""The variables by which somebody may choose otherwise. They are read when OpenMP is loaded."""


def waiting_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to add to the environment of a process that computes; nothing where they are chosen already."""
    return {} if any(name in environment for name in CHOICES) else {CHOICES[0]: TURNS}
