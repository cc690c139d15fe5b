"""From the loss of a member of four to the survivors' next sum, and to a job's next update, against ``torchrun``.

./dev bench reform [--quick] [--kills 20] [--stops 5] [--restarts 5] [--job-kills 10]
"""

from __future__ import annotations

import math
import random
import signal
import time

from benchmarks.harness import Report, parse
from benchmarks.harness.members import BenchGroup, bench_group
from benchmarks.training.faults import measure_faults

MEMBERS = 4
SIZES = {"1mb": 1 << 20, "32mb": 32 << 20}
ADAPTERS = ("shared_memory", "sockets", "gloo")
KILL_GOAL_S, STOP_GOAL_S = 0.25, 1.25
ABOUT = """\
Four processes sum without a pause; one is killed (`SIGKILL`) or stopped (`SIGSTOP`) in the middle of that, at a
random moment. The survivors say whom they suspect, are given the plan of the next generation (here at once, by the
benchmark; in a job by the master), form it in the same processes and sum once. Measured is the time from the signal
to the slowest survivor's finished sum, with the summing itself. A p95 is the largest value of 20 but one."""


def lose(group: BenchGroup, adapter: str, length: int, number: int, rng: random.Random) -> tuple[float, float]:
    """Seconds from the signal until all survivors know, and until they have summed."""
    members = list(group.members)
    lost = rng.choice(members)
    for member in members:
        member.begin("sum_until_broken", length)
    time.sleep(rng.uniform(0.05, 0.25))
    survivors = [member for member in members if member is not lost]
    sent = time.monotonic()
    lost.send_signal(number)
    broken = [member.answer() for member in survivors]
    if any(suspects != [members.index(lost)] for _, suspects in broken):
        raise RuntimeError(f"the survivors suspect {broken}, and not {members.index(lost)}")
    plan = group.plan(survivors, adapter)
    for rank, member in enumerate(survivors):
        member.begin("go_on", plan, rank, length)
    done = [member.answer() for member in survivors]
    lost.end()
    return max(when for when, _ in broken) - sent, max(done) - sent


def percentile(values: list[float], share: float) -> float:
    """The value that a share of the values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def run(report: Report, kills: int, stops: int) -> None:
    """Measures all adapters."""
    rng = random.Random(1)
    rows = []
    with bench_group(MEMBERS) as group:
        for adapter in ADAPTERS:
            for size, nbytes in SIZES.items():
                for name, number, count in (("SIGKILL", signal.SIGKILL, kills), ("SIGSTOP", signal.SIGSTOP, stops)):
                    report.say(f"{adapter}, {size}, {name}")
                    known, done = [], []
                    for _ in range(count):
                        group.fill(MEMBERS)
                        group.form(adapter)
                        one = lose(group, adapter, nbytes // 4, number, rng)
                        known.append(one[0])
                        done.append(one[1])
                    worst = percentile(done, 0.95)
                    summed = [min(done), percentile(done, 0.5), worst, max(done)]
                    times = [1e3 * one for one in (percentile(known, 0.5), *summed)]
                    rows.append([adapter, size, name, count, *times])
                    goal = KILL_GOAL_S if name == "SIGKILL" else STOP_GOAL_S
                    report.target(f"reform_{adapter}_{size}_{name.lower()}_s", worst, goal, at_least=False)
    summed_head = ["summed: the shortest, ms", "median", "p95", "the longest"]
    report.table(["adapter", "size", "signal", "times", "all know, ms", *summed_head], rows)


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
