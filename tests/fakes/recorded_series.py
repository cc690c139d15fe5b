"""Numbers over time as a master and the api would have recorded them, for the story and for the cluster."""

from __future__ import annotations

import math
from typing import Any

from elasticdl_core.series import SeriesRecorder

EVERY_S = 30
_TARGETS = ((21_600, 1), (20_000, 4), (15_000, 2), (6000, 0), (5395, 2), (4990, 6))
"""Seconds ago, and the story's workers from then on."""
_SUSPENDED = (5990, 5395)


def story_rows(now: float, job_id: str, loss_of: Any) -> list[dict[str, Any]]:
    """Rows of ``job_series``: one sample in half a minute, with a gap while the job was suspended."""
    recorder = SeriesRecorder(most_rows=100_000)
    version = 0.0
    for ago in range(21_570, 0, -EVERY_S):
        if _SUSPENDED[1] <= ago <= _SUSPENDED[0]:
            continue
        workers = _at(ago)
        wave = math.sin(ago / 300)
        speed = workers * (690 + 25 * wave)
        version += speed * EVERY_S / 64 / 28.5
        values = {
            "samples_per_second": speed,
            "loss": loss_of(int(version)),
            "learning_rate": 0.01,
            "records_done": version * 64,
            "eta_seconds": max(60.0, (1_843_200 - version * 64) / max(speed, 1)),
            "model_version": version,
            "workers.target": workers,
            "workers.running": workers - (1 if 11_997 <= ago <= 12_030 else 0),
            "training.accuracy": 0.9 - 0.35 * math.exp(-version / 3000) + 0.004 * wave,
            "step.data": 0.011 + 0.004 * max(wave, 0),
            "step.pull": 0.014,
            "step.compute": 0.052,
            "step.push": 0.009,
            "step.wait": 0.004 + 0.002 * workers,
            "ps.bytes": 60e6 + 2500 * version,
            "ps.rows": 400_000 + 60 * version,
            "ps.load": 0.06 * workers + 0.02 * wave,
        }
        values |= {f"worker.{index}.samples_per_second": 702 - 11 * index + 20 * wave for index in range(workers)}
        recorder.record(now - ago, values)
    return _rows(recorder, job_id=job_id)


def cluster_rows(now: float, slots: int, story_id: str) -> list[dict[str, Any]]:
    """Rows of ``cluster_series`` of the same hours."""
    recorder = SeriesRecorder(most_rows=100_000)
    for ago in range(21_570, 0, -EVERY_S):
        mine, wide = _at(ago), slots * (0.6 + 0.15 * math.sin(ago / 4000))
        others = 200 + 60 * math.sin(ago / 900)
        values = {
            "slots.total": slots,
            "slots.reserved": 12,
            "slots.used": mine + wide + others,
            "queue": 60 + 40 * math.sin(ago / 2000),
            f"job.{story_id}": mine,
            "job.wide-manyw1": round(wide),
            "job.other": round(others),
        }
        recorder.record(now - ago, values)
    return _rows(recorder)


def _at(ago: float) -> int:
    return [workers for since, workers in _TARGETS if ago <= since][-1]


def _rows(recorder: SeriesRecorder, **mine: Any) -> list[dict[str, Any]]:
    return [
        {
            **mine,
            "tier": row.tier,
            "start": row.start,
            "writer": 1,
            "samples": row.samples,
            "numbers": {name: list(told) for name, told in row.numbers.items()},
        }
        for row in recorder.take(everything=True)
    ]
