"""Puts workers on machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticdl_core.scheduling.simulator.curves import Placement


class Machines:
    """Equal machines, and which job has how many workers on each.

    Args:
        nodes: how many machines.
        per_node: workers on each.
        pack: put small jobs on the fullest machine that has room (which keeps others whole); else always start with
            the emptiest, as the recorded schedulers do.
    """

    def __init__(self, nodes: int, per_node: int, *, pack: bool) -> None:
        self._per_node = per_node
        self._pack = pack
        self._free = [per_node] * nodes
        self._held: dict[str, dict[int, int]] = {}

    def assign(self, order: Sequence[str], targets: Mapping[str, int]) -> set[str]:
        """Moves every job to its target; a job whose count stays keeps its machines.

        Args:
            order: the order in which those that change are placed.
            targets: workers by job.

        Returns:
            The jobs that changed.
        """
        changed = [job for job in order if self.count(job) != targets[job]]
        for job in [*changed, *(job for job in self._held if job not in targets)]:
            for node, workers in self._held.pop(job, {}).items():
                self._free[node] += workers
        if self._pack:
            changed_order = sorted(changed, key=lambda job: targets[job])
        else:
            changed_order = changed
        for job in changed_order:
            if targets[job]:
                self._held[job] = self._place(targets[job])
        return set(changed)

    def _place(self, workers: int) -> dict[int, int]:
        held: dict[int, int] = {}
        while workers:
            fitting = [n for n, free in enumerate(self._free) if free >= workers] if self._pack else []
            if fitting:
                node = min(fitting, key=lambda n: (self._free[n], n))
            else:
                node = max(range(len(self._free)), key=lambda n: (self._free[n], -n))
            taken = min(self._free[node], workers)
            if taken <= 0:
                raise ValueError(f"{workers} workers do not fit: the plan exceeds the capacity")
            held[node] = held.get(node, 0) + taken
            self._free[node] -= taken
            workers -= taken
        return held

    def count(self, job: str) -> int:
        """Workers that a job has."""
        return sum(self._held.get(job, {}).values())

    def placement(self, job: str) -> Placement:
        """The spread over nodes; empty if it has none."""
        return tuple(self._held.get(job, {}).values())
