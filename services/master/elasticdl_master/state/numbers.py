"""The numbers of a job that are kept over time, out of its status."""

from __future__ import annotations

from elasticdl_master.state.status import MasterStatus

MOST_WORKERS = 24
"""Workers whose speed is kept apart: those with the lowest indexes."""
MOST_METRICS = 16
_FINITE = (int, float)


def numbers_of(status: MasterStatus, target: int) -> dict[str, float | None]:
    """One sample of all series.

    Args:
        status: the job's.
        target: how many workers it shall have.
    """
    running = [worker for worker in status["workers"] if worker["state"] == "running"]
    numbers: dict[str, float | None] = {
        "model_version": status["model_version"],
        "samples_per_second": status["samples_per_second"],
        "records_done": status["progress"]["records_done"],
        "eta_seconds": status["eta_seconds"],
        "learning_rate": status["learning_rate"],
        "workers.target": target,
        "workers.running": len(running),
    }
    if status["ps"]:
        numbers["ps.bytes"] = sum(one["bytes"] for one in status["ps"])
        numbers["ps.rows"] = sum(one["rows"] for one in status["ps"])
        numbers["ps.load"] = sum(one["load"] for one in status["ps"]) / len(status["ps"])
    for name, seconds in status["step"].items():
        numbers[f"step.{name}"] = seconds
    for name, value in list(status["training_metrics"].items())[:MOST_METRICS]:
        numbers[f"training.{name}"] = value if isinstance(value, _FINITE) else None
    for worker in sorted(running, key=lambda worker: worker["index"])[:MOST_WORKERS]:
        numbers[f"worker.{worker['index']}.samples_per_second"] = worker["samples_per_second"]
    return numbers
