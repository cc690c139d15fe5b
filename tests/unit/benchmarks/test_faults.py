from __future__ import annotations

import json
from pathlib import Path

from benchmarks.training.faults import BATCH, MINIBATCH, UpdateWatch


def trace(folder: Path, owner: str, *lines: tuple[int, int, int]) -> None:
    """Adds lines of a version and its positions to a member's trace."""
    with (folder / f"{owner}.jsonl").open("a") as file:
        for version, start, end in lines:
            file.write(
                json.dumps({"task": "t:0:0", "epoch": 0, "version": version, "start": start, "end": end}) + "\n"
            )


def watched(folder: Path, updates: int) -> UpdateWatch:
    watch = UpdateWatch(folder)
    watch.until(lambda: len(watch.updates) == updates, "updates are seen", 10.0)
    watch.close()
    return watch


def test_an_update_is_seen_with_what_each_member_did_of_it(tmp_path: Path) -> None:
    half = BATCH // 2
    trace(tmp_path, "worker-0.0", (1, 0, half), (2, BATCH, 2 * BATCH))
    trace(tmp_path, "worker-1.0", (1, half, BATCH))
    watch = watched(tmp_path, 2)
    done = {version: one.records for version, one in watch.updates.items()}
    assert done == {1: {"worker-0.0": half, "worker-1.0": half}, 2: {"worker-0.0": BATCH}}
    assert watch.twice == 0


def test_records_in_two_updates_are_told(tmp_path: Path) -> None:
    trace(tmp_path, "worker-0.0", (1, 0, BATCH), (2, BATCH - MINIBATCH, 2 * BATCH - MINIBATCH))
    assert watched(tmp_path, 2).twice == MINIBATCH


def test_records_done_again_for_the_same_update_are_not(tmp_path: Path) -> None:
    # The one who was lost may have written its part, which another one then did for the same update.
    trace(tmp_path, "worker-0.0", (1, 0, BATCH), (1, 0, BATCH), (2, BATCH, 2 * BATCH))
    assert watched(tmp_path, 2).twice == 0
