"""The numbers of a job that its master shows to whoever watches processes, out of the job's status."""

from __future__ import annotations

from elasticdl_core.meters import MeterKey
from elasticdl_master.state.status import MasterStatus


def meters_of(status: MasterStatus, target: int, contradictions: int = 0) -> dict[MeterKey, float | None]:
    """The numbers.

    Args:
        status: the job's.
        target: how many workers it shall have.
        contradictions: how often queue and machine did not agree.
    """
    progress = status["progress"]
    running = [worker for worker in status["workers"] if worker["state"] == "running"]
    return {
        ("elasticdl_job_records_done", ""): progress["records_done"],
        ("elasticdl_job_records_planned", ""): progress["records_total"],
        ("elasticdl_job_epoch", ""): progress["epoch"],
        ("elasticdl_job_samples_per_second", ""): status["samples_per_second"],
        ("elasticdl_job_eta_seconds", ""): status["eta_seconds"],
        ("elasticdl_job_loss", ""): status["loss"],
        ("elasticdl_job_learning_rate", ""): status["learning_rate"],
        ("elasticdl_job_model_version", ""): status["model_version"],
        ("elasticdl_job_workers", "target"): target,
        ("elasticdl_job_workers", "running"): len(running),
        ("elasticdl_job_records_redone_total", ""): status["redone"],
        ("elasticdl_job_records_duplicated", ""): status["duplicates"],
        ("elasticdl_job_records_skipped", ""): sum(status["ledger"]["skipped"].values()),
        ("elasticdl_job_queue_contradictions_total", ""): contradictions,
        ("elasticdl_job_degraded", ""): status["degraded"] is not None,
        **{("elasticdl_job_step_seconds", part): seconds for part, seconds in status["step"].items()},
    }
