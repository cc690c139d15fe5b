"""Sums among 2 and 4 processes of one machine, and training by them, against torch.distributed and Keras.

./dev bench allreduce [--quick] [--repeats 5] [--rounds 5]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.harness import Report, Sample, parse
from benchmarks.harness.members import BenchGroup, bench_group
from benchmarks.harness.plots import bars
from benchmarks.training.by_group import compare_training

SIZES = {"1mb": 1 << 20, "25mb": 25 << 20, "100mb": 100 << 20}
MEMBERS = (2, 4)
ADAPTERS = ("shared_memory", "sockets")
CALLS = {"1mb": 20, "25mb": 3, "100mb": 1}
TURNS = {"1mb": 5, "25mb": 3, "100mb": 1}
"""So many times the repeats of each: short sums vary most, and cost least to repeat."""
CONTROL = "plain, again"
CLOSELY = 4
"""So many times the turns of plain against itself: one quotient of 1 MB varies by 30 %."""
SHARED_GOAL = 2.0
ABOUT = """\
*Plain* is `torch.distributed.all_reduce` of the default process group with gloo. The others are our adapters: *in
place* sums leaves that were computed in the memory that a sum gives (as plain allreduce works on the tensor itself),
*copied* takes leaves from elsewhere, *tree* brings two leaves a member, summed in the fixed binary tree whose bits do
not depend on the members. A time is that of the slowest member. A ratio is the median of the quotients of times taken
side by side: above 1 we are faster. *Plain, again* compares plain with itself: so far from 1 may be chance."""


def sides() -> dict[str, tuple[str, str]]:
    """The compared adapters and ways, by name."""
    own = {f"{adapter}, {way}": (adapter, way) for adapter in ADAPTERS for way in ("in place", "copied", "tree")}
    return {CONTROL: ("", ""), **own}


def time_side(group: BenchGroup, adapter: str, way: str, length: int, calls: int) -> float:
    """The time of the slowest member."""
    if not adapter:
        return max(group.each("time_plain", length, calls))
    return max(group.each("time_sum", adapter, length, calls, way))


def measure(group: BenchGroup, size: str, repeats: int) -> dict[str, tuple[Sample, Sample]]:
    """Times each side in turns with plain; returns its times, and how many times faster it was each time."""
    length, calls = SIZES[size] // 4, CALLS[size]
    found = {}
    for name, (adapter, way) in sides().items():
        plain: list[float] = []
        own: list[float] = []
        turns = repeats * TURNS[size] * (CLOSELY if name == CONTROL else 1)
        for turn in range(turns + 1):
            # Whoever comes first in one turn comes second in the next one.
            for first in (turn % 2 == 0, turn % 2 == 1):
                if first:
                    plain.append(time_side(group, "", "", length, calls))
                else:
                    own.append(time_side(group, adapter, way, length, calls))
        # The first turn only warms up.
        sample = Sample(tuple(own[1:]))
        found[name] = (sample, Sample(tuple(plain[1:])).ratios(sample))
    return found


def run(report: Report, repeats: int) -> None:
    """Measures all sizes."""
    rows, ratios = [], {}
    for members in MEMBERS:
        with bench_group(members) as group, tempfile.TemporaryDirectory() as folder:
            for rank, member in enumerate(group.members):
                member.begin("join_plain", str(Path(folder) / "store"), rank, members)
            for member in group.members:
                member.answer()
            for adapter in ADAPTERS:
                group.form(adapter, adapter)
            for size in SIZES:
                report.say(f"{members} members, {size}")
                for name, (sample, ratio) in measure(group, size, repeats).items():
                    ratios[members, size, name] = ratio.median
                    spreads = [f"{one.spread:.0%}" for one in (sample, ratio)]
                    rows.append([members, size, name, sample.median * 1e3, spreads[0], ratio.median, spreads[1]])
    report.table(["members", "size", "side", "ms", "spread", "plain / this", "its spread"], rows)
    for members in MEMBERS:
        for size in ("1mb", "25mb"):
            name = f"allreduce_shared_memory_{members}_{size}"
            report.target(name, ratios[members, size, "shared_memory, in place"], SHARED_GOAL)
    groups = [f"{members} x {size}" for members in MEMBERS for size in SIZES]
    series = {name: [ratios[members, size, name] for members in MEMBERS for size in SIZES] for name in sides()}
    report.plot("ratios", bars(groups, series, "plain gloo's time / ours", goal=1.0), "Times faster than plain gloo")


def main() -> int:
    """Runs the benchmark."""
    options = parse(__doc__, repeats=5, rounds=5)
    report = Report("allreduce", "AllReduce", ABOUT)
    run(report, 3 if options.quick else options.repeats)
    compare_training(report, quick=options.quick, rounds=options.rounds)
    report.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
