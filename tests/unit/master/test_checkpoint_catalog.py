"""The checkpoints that a master keeps, and which of them it removes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticdl_core.best_evaluation import BEST, BestEvaluation, mark_of
from elasticdl_core.checkpoint_manifest import BestMark, Manifest
from elasticdl_core.errors import DataError
from elasticdl_core.path_policy import PathPolicy
from elasticdl_master.state.checkpoints import PERIODIC, RECOVERY, CheckpointCatalog
from elasticdl_master.state.instructions import Save
from elasticdl_runtime.checkpoint_directory import CheckpointDirectory, commit_manifest
from elasticdl_runtime.stored_checkpoints import find_checkpoint

pytestmark = pytest.mark.unit


def manifest(version: int, kind: str = PERIODIC) -> dict[str, Any]:
    return {"version": version, "directory": f"/c/{version}-{kind}", "kind": kind}


class TestCheckpoints:
    def test_one_for_each_multiple_even_if_a_save_is_of_an_earlier_version(self) -> None:
        book = CheckpointCatalog(100, 0, 0.0)
        assert book.due(99, 0.0) == ""
        assert book.due(101, 0.0) == PERIODIC
        book.begin(PERIODIC, 101, 0.0)
        assert book.due(300, 0.0) == ""
        book.committed(manifest(98), 1.0)
        assert book.due(103, 2.0) == ""
        assert book.due(200, 3.0) == PERIODIC

    def test_a_save_that_failed_is_due_again(self) -> None:
        book = CheckpointCatalog(100, 0, 0.0)
        book.begin(PERIODIC, 101, 0.0)
        book.failed(1.0)
        assert book.due(102, 2.0) == PERIODIC

    def test_recovery_checkpoints_come_by_the_clock_and_only_the_newest_is_kept(self) -> None:
        book = CheckpointCatalog(0, 3, 30.0)
        assert book.due(5, 0.0) == RECOVERY
        book.begin(RECOVERY, 5, 0.0)
        book.committed(manifest(5, RECOVERY), 1.0)
        assert book.due(9, 20.0) == ""
        assert book.due(5, 60.0) == ""
        assert book.due(9, 60.0) == RECOVERY
        book.begin(RECOVERY, 9, 60.0)
        assert book.committed(manifest(9, RECOVERY), 70.0) == [manifest(5, RECOVERY)]
        assert book.due(20, 110.0) == "", "a save of 10 s is repeated after 200 s at the earliest"
        assert book.committed(manifest(30, "final"), 111.0) == [manifest(9, RECOVERY)]

    def test_recovery_checkpoints_come_between_those_that_the_user_asked_for(self) -> None:
        book = CheckpointCatalog(1000, 2, 30.0)
        assert book.due(3, 0.0) == RECOVERY
        book.begin(RECOVERY, 3, 0.0)
        book.committed(manifest(3, RECOVERY), 1.0)
        assert book.due(990, 20.0) == ""
        assert book.due(990, 40.0) == RECOVERY
        book.begin(RECOVERY, 990, 40.0)
        # It was written a little later than it was asked for, past what the user asked for: that is due all the same.
        assert book.committed(manifest(1003, RECOVERY), 41.0) == [manifest(3, RECOVERY)]
        assert book.due(1004, 42.0) == PERIODIC
        book.begin(PERIODIC, 1004, 42.0)
        assert book.committed(manifest(1004), 43.0) == [manifest(1003, RECOVERY)]
        assert book.due(1005, 44.0) == ""

    @pytest.mark.parametrize(("keep", "left"), [(0, 5), (1, 1), (3, 3)])
    def test_the_last_ones_are_kept_and_zero_keeps_all(self, keep: int, left: int) -> None:
        book = CheckpointCatalog(1, keep, 0.0)
        for version in range(5):
            book.committed(manifest(version), 0.0)
        assert [m["version"] for m in book.manifests] == list(range(5))[-left:]

    def test_the_best_one_stays_and_goes_when_another_is_better(self) -> None:
        book = CheckpointCatalog(1, 1, 0.0)
        rule = BestEvaluation("auc", "max")

        def save(kind: str, version: int, mark: BestMark | None = None) -> list[Manifest]:
            as_kind, best = book.marked_as(Save(kind, {}, 0, 0, mark), version)
            made: Any = {**manifest(version, as_kind), "best": best}
            return book.committed(made, 0.0)

        save(BEST, 3, rule.mark(0.5, 3, 1))
        assert (save(PERIODIC, 4), save(PERIODIC, 5)) == ([], [{**manifest(4), "best": None}])
        # One of the same version takes its place and its mark, and its own kind.
        save(BEST, 5, rule.mark(0.75, 5, 2))
        assert [(m["version"], m["kind"]) for m in book.manifests] == [(5, PERIODIC)]
        save("final", 6)
        assert [(m["version"], mark_of(m) is not None) for m in book.manifests] == [(5, True), (6, False)]
        # What has moved on since it was evaluated is not the best; it is good for a recovery.
        assert book.marked_as(Save(BEST, {}, 0, 0, rule.mark(0.9, 7, 3)), 8) == (RECOVERY, None)
        best = book.best
        assert best is not None and best["version"] == 5
        book.refuse(best["directory"])
        assert book.best is None

    def test_a_refused_checkpoint_is_passed_over(self) -> None:
        book = CheckpointCatalog(1, 0, 0.0, [manifest(1), manifest(2)], manifest(0))
        book.refuse("/c/2-periodic")
        assert book.to_restore == manifest(1)
        book.refuse("/c/1-periodic")
        assert book.to_restore == manifest(0)
        book.refuse("/c/0-periodic")
        assert book.to_restore is None

    def test_a_directory_of_checkpoints_is_its_newest(self, tmp_path: Path) -> None:
        directory = CheckpointDirectory(tmp_path, "job-1")
        for version in (7, 12):
            path = directory.prepare(version)
            commit_manifest(
                {"version": version, "directory": str(path), "files": [], "job_id": "job-1", "created_at": version}
            )
        directory.prepare(99)
        assert find_checkpoint(str(tmp_path))["version"] == 12
        found = find_checkpoint(str(next(tmp_path.glob("*0007*"))))
        assert found["version"] == 7
        directory.prune(found)
        assert not list(tmp_path.glob("*0007*"))

    def test_another_jobs_checkpoint_is_never_removed(self, tmp_path: Path) -> None:
        path = CheckpointDirectory(tmp_path, "job-1").prepare(1)
        entry = {"version": 1, "directory": str(path), "files": [], "job_id": "job-1"}
        commit_manifest(entry)
        CheckpointDirectory(tmp_path, "job-2").prune(entry)
        CheckpointDirectory(tmp_path / "elsewhere", "job-1").prune(entry)
        assert find_checkpoint(str(tmp_path))["version"] == 1

    def test_what_was_never_committed_is_swept_away(self, tmp_path: Path) -> None:
        directory = CheckpointDirectory(tmp_path, "job-1")
        kept, left = directory.prepare(1), directory.prepare(2)
        (Path(left) / "ps-0.bin").write_bytes(b"x")
        directory.sweep({str(kept)})
        assert [str(path) for path in tmp_path.iterdir()] == [kept]

    def test_what_was_committed_is_known_by_whatever_path_leads_there(self, tmp_path: Path) -> None:
        """A restricted job writes where its directory really is; a new master comes by the path that it is given."""
        (tmp_path / "disk").mkdir()
        (tmp_path / "data").symlink_to("disk")
        directory = CheckpointDirectory(tmp_path / "data", "job-1", PathPolicy(write=(str(tmp_path / "disk"),)))
        kept = directory.prepare(1)
        directory.sweep({kept})
        assert [path.name for path in (tmp_path / "disk").iterdir()] == [Path(kept).name]

    def test_a_whole_checkpoint_of_which_a_restored_database_does_not_know_stays(self, tmp_path: Path) -> None:
        directory = CheckpointDirectory(tmp_path, "job-1")
        forgotten, known, later, torn = (directory.prepare(version) for version in (1, 2, 3, 4))
        for path in (forgotten, known, later):
            commit_manifest({"version": 1, "directory": path, "files": [], "job_id": "job-1"})
        directory.sweep({known})
        assert sorted(map(str, tmp_path.iterdir())) == [known, later]
        assert not Path(torn).exists()

    @pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 1, "files": [{"name": "x"}]}'])
    def test_a_damaged_manifest_is_named(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(DataError, match=r"manifest\.json is damaged"):
            find_checkpoint(str(tmp_path))
