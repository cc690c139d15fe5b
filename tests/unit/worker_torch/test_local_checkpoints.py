"""Which checkpoints a local run leaves, by whole updates and in parts; what others make of them is of the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticdl_core.errors import SpecError, UserCodeError
from elasticdl_core.job.fields import ALL_REDUCE
from elasticdl_runtime.checkpoint_files import CheckpointFile, read_checkpoint
from elasticdl_runtime.stored_checkpoints import MANIFEST, find_checkpoint
from elasticdl_worker.local import run_local

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("parts", [0, 2])
def test_the_last_ones_stay(make_spec: Any, tmp_path: Path, parts: int) -> None:
    """The folder was never made."""
    folder = tmp_path / "kept"
    cut = {"distribution_strategy": ALL_REDUCE, "microbatches": parts} if parts else {"embedding_threshold_bytes": 0}
    base = make_spec(checkpoint_dir=str(folder), checkpoint_steps=4, keep_checkpoint_max=2).to_mapping()
    base.pop("embedding_threshold_bytes")
    spec = type(make_spec()).from_mapping({**base, **cut})
    events: list[dict[str, Any]] = []
    run_local(spec, tmp_path / "out", events.append)
    steps = events[-1]["steps"]
    assert steps == 19
    found = [find_checkpoint(str(path)) for path in sorted(folder.iterdir())]
    assert [(one["version"], one["kind"]) for one in found] == [(16, "periodic"), (19, "final")]
    last = found[-1]
    files = [CheckpointFile(one["name"], one["size"], one["sha256"]) for one in last["files"]]
    content = read_checkpoint(last["directory"], files, with_slots=True)
    assert content.version == 19
    assert bool(content.tables) == (not parts)  # as parameter servers, or a group, would have them


def test_a_run_that_says_nothing_of_them_writes_none(make_spec: Any, tmp_path: Path) -> None:
    run_local(make_spec(max_steps=1), tmp_path / "out", lambda event: None)
    assert not list(tmp_path.rglob(MANIFEST))


def test_what_one_process_does_not_do_is_refused_by_the_run_itself(make_spec: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="table_admission: --local does not do it: only parameter servers do it"):
        run_local(make_spec(table_admission=3), tmp_path / "out", lambda event: None)


@pytest.mark.parametrize("rule", ["accuracy:min", "no_such_metric:max"])
def test_the_best_one_stays_and_is_exported(make_spec: Any, clicks: Path, tmp_path: Path, rule: str) -> None:
    """An unknown metric is refused before the first record."""
    spec = make_spec(validation_data=str(clicks), keep_best=rule, keep_checkpoint_max=1, num_epochs=2)
    events: list[dict[str, Any]] = []
    if "no_such" in rule:
        with pytest.raises(UserCodeError, match="watches 'no_such_metric', but the evaluation gives"):
            run_local(spec, tmp_path / "out", events.append)
        assert not [event for event in events if event["event"] == "progress"]
        return
    run_local(spec, tmp_path / "out", events.append)
    found = [event for event in events if event["event"] == "evaluation"]
    worst = min(found, key=lambda event: event["metrics"]["accuracy"])
    kept = [find_checkpoint(str(path)) for path in sorted((tmp_path / "out" / "checkpoints").iterdir())]
    assert {one["version"] for one in kept} == {worst["step"], found[-1]["step"]}
    assert {one["version"] for one in kept if one["best"]} == {worst["step"]}
    names = [file["name"] for file in events[-1]["artifacts"]]
    assert "best/model.safetensors" in names and "model.safetensors" in names
    assert (tmp_path / "out" / "best" / "model.safetensors").is_file()
