"""Checkpoints in folders and in object stores: there with their manifest or not at all, and read as they were put."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import ConflictError, DataError, ElasticDLError, UnavailableError
from elasticdl_core.model import DenseSpec, OptimizerSpec, UpdateMode
from elasticdl_core.path_policy import PathPolicy, is_url, join_place
from elasticdl_master.kept_checkpoint import keep
from elasticdl_runtime.checkpoint_directory import CheckpointDirectory, commit_manifest
from elasticdl_runtime.checkpoint_files import (
    CheckpointFile,
    DenseSection,
    PartHeader,
    PartWriter,
    read_checkpoint,
)
from elasticdl_runtime.object_store import ObjectStore
from elasticdl_runtime.stored_checkpoints import MANIFEST, find_checkpoint

pytestmark = [pytest.mark.contract, pytest.mark.timeout(120)]
JOB = "digits-x7k2p9"
SIZE = 1000
SPEC = DenseSpec("weights", (SIZE,), "float32")
HEADER = PartHeader(0, 1, 7, OptimizerSpec("sgd", {}), (), UpdateMode(), (DenseSection(SPEC, 0, SIZE),), ())


def parts_of(directory: str, value: float, parts: int = 2) -> list[CheckpointFile]:
    """What parameter servers write, each its slice."""
    files = []
    for index in range(parts):
        section = DenseSection(SPEC, index * SIZE // parts, (index + 1) * SIZE // parts)
        header = replace(HEADER, index=index, num_ps=parts, dense=(section,))
        with PartWriter(directory, f"ps-{index}", header) as writer:
            writer.write_dense(0, np.full(section.stop - section.start, value + index, np.float32))
            files.append(writer.finish())
    return files


def manifest_of(directory: str, files: Iterable[CheckpointFile], version: int = 7, job: str = JOB) -> Manifest:
    named = [{"name": one.name, "size": one.size, "sha256": one.sha256} for one in files]
    made: Any = {"version": version, "directory": directory, "files": named, "job_id": job, "created_at": version}
    return made


def saved(place: str, version: int = 7, value: float = 1.0) -> Manifest:
    directory = CheckpointDirectory(place, JOB).prepare(version)
    manifest = manifest_of(directory, parts_of(directory, value), version)
    commit_manifest(manifest)
    return manifest


def values_of(manifest: Manifest) -> Any:
    files = [CheckpointFile(one["name"], one["size"], one["sha256"]) for one in manifest["files"]]
    return read_checkpoint(manifest["directory"], files).dense["weights"]


def names_in(place: str) -> set[str]:
    if is_url(place):
        return set(ObjectStore(place).sizes())
    return {path.relative_to(place).as_posix() for path in Path(place).rglob("*") if path.is_file()}


def change(directory: str, name: str) -> None:
    """Writes a part anew, as long as it was, with another byte in it."""
    store = ObjectStore(directory) if is_url(directory) else None
    data = bytearray(store.read(name) if store is not None else Path(directory, name).read_bytes())
    data[-1000] ^= 1
    if store is not None:
        store.put(name, bytes(data))
    else:
        Path(directory, name).write_bytes(data)


def test_what_was_saved_is_found_and_read(place: str) -> None:
    first, second = saved(place, 7), saved(place, 9, value=5.0)
    assert find_checkpoint(place) == second
    assert find_checkpoint(first["directory"]) == first
    assert np.array_equal(values_of(second), np.repeat(np.float32([5, 6]), SIZE // 2))
    assert names_in(second["directory"]) == {"ps-0", "ps-1", MANIFEST}


def test_without_a_manifest_there_is_no_checkpoint(place: str) -> None:
    with pytest.raises(DataError, match="there is no checkpoint"):
        find_checkpoint(place)
    directory = CheckpointDirectory(place, JOB)
    begun = directory.prepare(9)
    parts_of(begun, 1.0)
    with pytest.raises(DataError, match="there is no checkpoint"):
        find_checkpoint(place)
    kept = saved(place, 7)
    assert find_checkpoint(place) == kept
    directory.abandon(begun)
    assert names_in(place) == {
        f"{kept['directory'].rpartition('/')[2]}/{name}" for name in ("ps-0", "ps-1", MANIFEST)
    }


def test_a_part_that_was_not_ended_is_not_there(place: str) -> None:
    directory = CheckpointDirectory(place, JOB).prepare(9)
    with pytest.raises(ZeroDivisionError), PartWriter(directory, "ps-0", HEADER) as writer:
        writer.write_dense(0, np.zeros(SIZE, np.float32))
        raise ZeroDivisionError
    assert not names_in(place)


def test_changed_and_missing_parts_are_refused_by_name(place: str, tmp_path: Path) -> None:
    manifest = saved(place)
    change(manifest["directory"], "ps-1")
    with pytest.raises(DataError, match=r"ps-1 cannot be used: (its SHA-256|block \d+ has a wrong checksum)"):
        values_of(manifest)
    with pytest.raises(DataError, match="ps-1 is damaged"):
        keep(manifest, tmp_path)
    gone = manifest_of(manifest["directory"], [CheckpointFile("ps-7", 10, "0" * 64)])
    with pytest.raises(DataError, match="ps-7 cannot be used"):
        values_of(gone)
    with pytest.raises(DataError, match="is not whole"):
        keep(gone, tmp_path)


def test_a_copy_is_kept_of_it(place: str, tmp_path: Path) -> None:
    kept = keep(saved(place), tmp_path)
    assert kept["directory"] == str(tmp_path / "initial")
    assert np.array_equal(values_of(kept), np.repeat(np.float32([1, 2]), SIZE // 2))


def test_old_ones_are_removed_and_those_of_other_jobs_stay(place: str) -> None:
    first, second = saved(place, 7), saved(place, 9)
    CheckpointDirectory(place, "another").prune(first)
    CheckpointDirectory(join_place(place, "elsewhere"), JOB).prune(first)
    assert find_checkpoint(first["directory"]) == first
    CheckpointDirectory(place, JOB).prune(first)
    assert {name.partition("/")[0] for name in names_in(place)} == {second["directory"].rpartition("/")[2]}
    CheckpointDirectory(place, JOB).prune(first)  # again, by a master that did not hear of it


def test_a_manifest_that_follows_another_takes_its_place(place: str) -> None:
    manifest = saved(place)
    commit_manifest({**manifest, "kind": "final"}, again=True)
    assert find_checkpoint(place)["kind"] == "final"


def test_places_out_of_reach_are_refused(place: str) -> None:
    saved(place)
    elsewhere = PathPolicy((join_place(place, "mine"),), (join_place(place, "mine"),))
    with pytest.raises(ElasticDLError, match="lies outside"):
        find_checkpoint(place, elsewhere)
    with pytest.raises(OSError, match="lies outside"):
        CheckpointDirectory(place, JOB, elsewhere).prepare(1)


def test_one_that_is_half_removed_is_none(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that removes it may die at any object."""
    if not is_url(place):
        pytest.skip("of a folder see test_checkpoint_book")
    kept = saved(place)
    delete = ObjectStore.delete

    def dies(store: ObjectStore, names: Iterable[str]) -> None:
        for name in list(names)[:1]:
            delete(store, [name])
            if name != MANIFEST:
                raise UnavailableError("the store is away", fix="")

    monkeypatch.setattr(ObjectStore, "delete", dies)
    with pytest.raises(OSError, match="the store is away"):
        CheckpointDirectory(place, JOB).prune(kept)
    assert 0 < len(names_in(place)) < 3
    with pytest.raises(DataError, match="there is no checkpoint"):
        find_checkpoint(place)


class TestObjects:
    """Of stores alone."""

    @pytest.fixture
    def store(self, place: str) -> ObjectStore:
        if not is_url(place):
            pytest.skip("a folder")
        return ObjectStore(place)

    def test_only_the_first_puts_a_manifest(self, store: ObjectStore) -> None:
        store.put_new(MANIFEST, b"first")
        store.put_new(MANIFEST, b"first")  # whose answer was lost
        with pytest.raises(ConflictError, match="is there already, and another one"):
            store.put_new(MANIFEST, b"second")
        assert store.read(MANIFEST) == b"first"

    def test_a_store_is_tried_out_and_left_as_it_was(self, store: ObjectStore) -> None:
        store.put("there", b"x")
        store.try_out()
        assert set(store.sizes()) == {"there"}

    def test_a_store_that_puts_over_what_is_there_is_refused(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = store._fs.pipe_file
        monkeypatch.setattr(store._fs, "pipe_file", lambda path, data, mode="": plain(path, data), raising=False)
        with pytest.raises(ElasticDLError, match="puts an object over one that is there"):
            store.try_out()
        assert not store.sizes()

    def test_objects_are_read_in_ranges_and_removed(self, store: ObjectStore, tmp_path: Path) -> None:
        content = bytes(range(256)) * 100
        (tmp_path / "file").write_bytes(content)
        store.put("a/b", tmp_path / "file")
        assert store.part("a/b", 250, 260) == content[250:260]
        with store.open("a/b") as file:
            assert file.read() == content
        assert store.sizes() == {"a/b": len(content)}
        store.delete(["a/b", "none"])
        assert store.sizes() == {}
        with pytest.raises(FileNotFoundError):
            store.read("a/b")

    def test_a_request_that_hangs_ends_at_its_deadline(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        released = threading.Event()
        monkeypatch.setattr(store._fs, "info", lambda path: released.wait(60))
        try:
            with pytest.raises(UnavailableError, match="no answer in 0 s"):
                ObjectStore(store.url, tries=2, deadline_s=0.01).size("x")
        finally:
            released.set()
