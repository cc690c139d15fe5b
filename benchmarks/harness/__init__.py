"""Parts shared by all benchmarks: fair timing of several sides, reports with targets, plots, inputs, PS processes."""

from benchmarks.harness.inputs import parse, zipf_ids
from benchmarks.harness.report import Report
from benchmarks.harness.timing import Sample, interleaved, measure

__all__ = ["Report", "Sample", "interleaved", "measure", "parse", "zipf_ids"]
