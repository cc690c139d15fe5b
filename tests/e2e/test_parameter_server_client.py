"""A look into a job that trains, through the low-level door."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl import ParameterServerClient
from tests.e2e.local_cluster import EXAMPLES, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.rotates(turns=3, place=0)]


def test_the_owner_looks_into_a_job_and_trains_beside_its_workers(cluster: Cluster, digits: object) -> None:
    job_id = cluster.submit(
        *("--model_zoo", str(EXAMPLES / "digits" / "zoo"), "--model_def", "digits.forward", "--minibatch_size", "32"),
        *("--training_data", f"{digits}/train", "--job_name", "looked-into", "--num_epochs", "5000"),
        *("--num_ps_pods", "2"),
    )
    with cluster.client() as client:
        for job in client.follow(job_id):
            if job["state"] == "RUNNING" and job["status"]["progress"]["records_done"] > 0:
                break
        with ParameterServerClient.of_job(job_id, data_dir=cluster.data_dir) as servers:
            specs = {spec.name: spec for spec in servers.model.dense}
            pulled = servers.pull()
            assert {name: value.shape for name, value in pulled.dense.items()} == {
                name: spec.shape for name, spec in specs.items()
            }
            assert all(np.isfinite(value).all() for value in pulled.dense.values())
            trained = [name for name, spec in specs.items() if spec.kind == "trainable"]
            result = servers.push({name: np.zeros(specs[name].shape) for name in trained})
            assert result.accepted
            assert result.version > pulled.version
        client.cancel(job_id)
    assert cluster.wait(job_id, timeout=60)["state"] == "CANCELLED"
