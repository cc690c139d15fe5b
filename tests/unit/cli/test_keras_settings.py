"""Settings of Keras that only this machine has: taken along with the job, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elasticdl.submission import prepare
from elasticdl_core.errors import InvalidInputError

pytestmark = pytest.mark.unit


@pytest.fixture(params=["tensorflow", "torch"])
def job(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    entries = ("forward()", "loss(labels, predictions)", "optimizer(lr=0.1)", "feed(dataset, mode, metadata)")
    (tmp_path / "m.py").write_text(f"import {request.param}\n" + "".join(f"def {one}: ...\n" for one in entries))
    (tmp_path / "data.csv").touch()
    return {
        "model_zoo": str(tmp_path),
        "model_def": "m.forward",
        "training_data": str(tmp_path / "data.csv"),
        "framework": request.param,
    }


def test_the_keras_of_the_shell_is_the_jobs(job: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "keras" not in prepare(job)
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert prepare(job).get("keras") == ("legacy" if job["framework"] == "tensorflow" else None)
    assert prepare(job | {"keras": "default"})["keras"] == "default"


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ('{"floatx": "float16", "backend": "torch"}', "floatx"),
        ('{"image_data_format": "channels_first", "epsilon": 0.1}', "epsilon and image_data_format"),
        ('{"floatx": "float32", "epsilon": 1e-07, "backend": "jax", "image_data_format": "channels_last"}', ""),
        ("[]", ""),
        ("{", ""),
    ],
)
def test_a_file_of_keras_that_changes_models_is_refused(
    job: dict[str, Any], tmp_path: Path, said: str, wrong: str
) -> None:
    (tmp_path / "keras.json").write_text(said)
    if not wrong or job["framework"] == "torch":
        assert prepare(job)
        return
    with pytest.raises(InvalidInputError, match=f"sets {wrong}, which other machines do not have") as caught:
        prepare(job)
    assert "keras.config.set_" in caught.value.fix
    assert json.loads(said)
