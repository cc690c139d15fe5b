"""From the loss of a member of four to the survivors' next sum, and to a job's next update, against ``torchrun``.

./dev bench reform [--quick] [--kills 20] [--stops 5] [--restarts 5] [--job-kills 10]
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import signal
import time
from collections.abc import Callable, Sequence

from benchmarks.harness import Report, parse
from benchmarks.harness.members import BenchGroup, bench_group
from benchmarks.training.faults import measure_faults
from tests.fakes.swallowing_network import hole_before, seen_from

MEMBERS = 4
SIZES = {"1mb": 1 << 20, "32mb": 32 << 20}
ADAPTERS = ("shared_memory", "sockets")
KILL_GOAL_S, STOP_GOAL_S = 0.25, 1.25
ABOUT = """\
Four processes sum without a pause; one is killed (`SIGKILL`) or stopped (`SIGSTOP`) in the middle of that, at a
random moment. The survivors say whom they suspect, are given the plan of the next generation (here at once, by the
benchmark; in a job by the master), form it in the same processes and sum once. In the last row members reach each
other by TCP alone, through relays, which from one moment on swallow all that one of them sends or is sent (a *black
hole*): nothing is closed, and its process cannot be seen. Measured is the time from the signal
to the slowest survivor's finished sum, with the summing itself. A p95 is the largest value of 20 but one."""


def lose(group: BenchGroup, adapter: str, length: int, number: int, rng: random.Random) -> tuple[float, float]:
    """Seconds from the signal until all survivors know, and until they have summed."""
    group.form(adapter)
    lost = rng.randrange(MEMBERS)
    return _lose(group, adapter, length, lost, lambda: group.members[lost].send_signal(number), rng)


def cut_off(group: BenchGroup, length: int, rng: random.Random) -> tuple[float, float]:
    """Seconds from the moment that a member's network swallows all, as ``lose`` says them."""
    lost = rng.randrange(MEMBERS)
    plan = group.plan(group.members, "auto")
    # Members connect to those of lower rank: the lost one to them, and those of higher rank to the lost one.
    holes = {rank: hole_before(plan.endpoints[rank]) for rank in range(lost + 1)}
    try:
        for rank, member in enumerate(group.members):
            through = holes if rank == lost else {lost: holes[lost]}
            seen = seen_from(rank, plan.endpoints, through)
            member.begin("form", dataclasses.replace(plan, endpoints=seen), rank)
        for member in group.members:
            member.answer()

        def swallow() -> None:
            for hole in holes.values():
                hole.swallow()

        return _lose(group, "auto", length, lost, swallow, rng)
    finally:
        for hole in holes.values():
            hole.close()


def _lose(
    group: BenchGroup, adapter: str, length: int, lost: int, cut: Callable[[], None], rng: random.Random
) -> tuple[float, float]:
    """Cuts a member off in the midst of sums; seconds until the others know, and until they have summed."""
    members = list(group.members)
    for member in members:
        member.begin("sum_until_broken", length)
    time.sleep(rng.uniform(0.05, 0.25))
    survivors = [member for member in members if member is not members[lost]]
    sent = time.monotonic()
    cut()
    broken = [member.answer() for member in survivors]
    if any(suspects != [lost] for _, suspects in broken):
        raise RuntimeError(f"the survivors suspect {broken}, and not {lost}")
    plan = group.plan(survivors, adapter)
    for rank, member in enumerate(survivors):
        member.begin("go_on", plan, rank, length)
    done = [member.answer() for member in survivors]
    members[lost].end()
    return max(when for when, _ in broken) - sent, max(done) - sent


def percentile(values: Sequence[float], share: float) -> float:
    """The value that a share of the values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def run(report: Report, kills: int, stops: int) -> None:
    """Measures all adapters, and members that reach each other by TCP alone."""
    rng = random.Random(1)
    rows = []

    def measure(adapter: str, size: str, name: str, count: int, once: Callable[[], tuple[float, float]]) -> None:
        report.say(f"{adapter}, {size}, {name}")
        known, done = zip(*(once() for _ in range(count)), strict=True)
        worst = percentile(done, 0.95)
        summed = [min(done), percentile(done, 0.5), worst, max(done)]
        rows.append([adapter, size, name, count, *(1e3 * one for one in (percentile(known, 0.5), *summed))])
        goal = KILL_GOAL_S if name == "SIGKILL" else STOP_GOAL_S
        report.target(f"reform_{adapter}_{size}_{name.replace(' ', '_').lower()}_s", worst, goal, at_least=False)

    with bench_group(MEMBERS) as group:
        for adapter, (size, nbytes) in itertools.product(ADAPTERS, SIZES.items()):
            for name, number, count in (("SIGKILL", signal.SIGKILL, kills), ("SIGSTOP", signal.SIGSTOP, stops)):

                def once(adapter: str = adapter, nbytes: int = nbytes, number: int = number) -> tuple[float, float]:
                    group.fill(MEMBERS)
                    return lose(group, adapter, nbytes // 4, number, rng)

                measure(adapter, size, name, count, once)
    with bench_group(MEMBERS, by_tcp=True) as group:

        def cut_once() -> tuple[float, float]:
            group.fill(MEMBERS)
            return cut_off(group, SIZES["1mb"] // 4, rng)

        measure("tcp", "1mb", "black hole", stops, cut_once)
    summed_head = ["summed: the shortest, ms", "median", "p95", "the longest"]
    report.table(["adapter", "size", "loss", "times", "all know, ms", *summed_head], rows)


def main() -> int:
    """Runs the benchmark."""
    options = parse(__doc__, kills=20, stops=5, restarts=5, job_kills=10)
    report = Report("reform", "Forming the next generation", ABOUT)
    kills, stops = (3, 2) if options.quick else (options.kills, options.stops)
    run(report, kills, stops)
    job_kills, job_stops, restarts = (2, 1, 1) if options.quick else (options.job_kills, stops, options.restarts)
    measure_faults(report, quick=options.quick, kills=job_kills, stops=job_stops, restarts=restarts)
    report.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
