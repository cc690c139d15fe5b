"""What was finished is there after a power cut, whole and under its name; what was not has left nothing."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elasticdl.client.artifact_file import ArtifactFile
from elasticdl.client.contexts import Context, Contexts, read_contexts, write_contexts
from elasticdl.client.views import Artifact
from elasticdl.data import Shard
from elasticdl.data.output import replacing
from elasticdl_agent.cluster.certificates import DevelopmentCertificates
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.isolation import Isolation, IsolationLevel
from elasticdl_agent.processes.journal import recover
from elasticdl_agent.processes.reservations import Reservations
from elasticdl_core.model import OptimizerSpec, UpdateMode
from elasticdl_core.ports.launcher import Tenant
from elasticdl_runtime import durable
from elasticdl_runtime.backup_files import BackupManifest, BackupWriter, extract, read_manifest
from elasticdl_runtime.bundles import pack_bundle, unpack_bundle
from elasticdl_runtime.checkpoint_directory import CheckpointDirectory, commit_manifest
from elasticdl_runtime.checkpoint_files import PartHeader, PartWriter
from elasticdl_runtime.cluster.secrets import ensure_secret_file
from elasticdl_worker.trainers.predictions import PredictionWriter
from elasticdl_worker.user_code import ModelModule
from tests.fakes.power_cut import PowerCut

pytestmark = pytest.mark.unit


def _durable(root: Path) -> None:
    (root / "fresh" / "below").mkdir(parents=True)
    (root / "fresh" / "below" / "one").write_text("1")
    (root / "old").mkdir()
    (root / "old" / "gone").write_text("0")
    durable.swap(root / "fresh", root / "old")
    durable.make_folder(root / "a" / "b")
    (root / "made").write_text("2")
    durable.place_new(root / "made", root / "a" / "new")
    (root / "late").write_text("3")
    with pytest.raises(FileExistsError):
        durable.place_new(root / "late", root / "a" / "new")
    (root / "late").unlink()
    assert (root / "a" / "new").read_text() == "2"
    durable.write(root / "a" / "b" / "text", "ä", 0o640)
    durable.write(root / "a" / "b" / "text", "ää", 0o600)


def _predictions(root: Path) -> None:
    sink = PredictionWriter(ModelModule(Path("net.py"), (), lambda: None), root / "artifacts" / "predictions", 0)
    with sink.write_task(Shard("a.csv", 0, 2)) as write:
        write(np.zeros(2), 0, 2)


def _checkpoint(root: Path) -> None:
    folder = CheckpointDirectory(root / "checkpoints", "j").prepare(7)
    with PartWriter(folder, "ps-0", PartHeader(0, 1, 7, OptimizerSpec("sgd", {}), (), UpdateMode(), (), ())) as part:
        part.finish()
    commit_manifest({"directory": str(folder), "version": 7})


def _backup(root: Path) -> None:
    (root / "source").write_text("of a job")
    writer = BackupWriter(root / "backup.tar")
    writer.add_file("jobs/a/file", root / "source")
    writer.finish(BackupManifest("0001", "0", 0.0, [], {}))
    (root / "source").unlink()
    assert read_manifest(root / "backup.tar").files
    assert extract(root / "backup.tar", "jobs", root / "restored") == 1


def _bundle(root: Path) -> None:
    (root / "zoo" / "sub").mkdir(parents=True)
    (root / "zoo" / "sub" / "model.py").write_text("x = 1")
    (root / "zoo.zip").write_bytes(pack_bundle(root / "zoo")[0])
    unpack_bundle(root / "zoo.zip", root / "unpacked")
    durable.sync_tree(root)


def _artifacts(root: Path) -> None:
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("below/file", "content")
    for name, content, headers in [
        ("model.npz", b"content", {}),
        ("model", zipped.getvalue(), {"content-type": "application/zip"}),
    ]:
        fetched = ArtifactFile(root / "models" / name)
        fetched.write(content)
        fetched.keep(Artifact(name), headers)
        fetched.discard()


def _converted(root: Path) -> None:
    for text in ("old", "new"):
        with replacing(root / "data" / "train", force=True) as path:
            path.mkdir()
            (path / "part-00000.csv").write_text(text)


def _contexts(root: Path) -> None:
    path = root / "config" / "contexts.json"
    write_contexts(path, Contexts({"a": Context("http://here", "t", "")}, "a"))
    assert read_contexts(path).current == "a"


def _cluster(root: Path) -> None:
    Reservations(root / "reservations.json", 4).set("web", 1, 1.0, now=0.0, clock=0.0)
    recover(root / "processes.jsonl")
    ensure_secret_file(root / "token")
    DevelopmentCertificates(root, ["localhost"]).ensure()


def _identities(root: Path) -> None:
    (root / "agent").mkdir()
    isolation = Isolation(AgentDirectories(root, root), IsolationLevel(user=True), uids=range(5000, 5002))
    assert isolation.user(Tenant("team", restricted=True))
    durable.sync_folder(root)


def contents(root: Path) -> dict[str, bytes | None]:
    """All that is below a folder: files with their content, folders with None."""
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in sorted(root.rglob("*"))}


@pytest.mark.parametrize(
    "finish",
    [
        *(_durable, _predictions, _checkpoint, _backup, _bundle, _artifacts, _converted, _contexts, _cluster),
        _identities,
    ],
)
def test_what_was_finished_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finish: Callable[[Path], None]
) -> None:
    """Seven of ten places synced the file and not the folder, three moved what was not synced at all."""
    disk = PowerCut(tmp_path, monkeypatch)
    finish(tmp_path)
    before = contents(tmp_path)
    assert before
    disk.strike()
    assert contents(tmp_path) == before
    assert not [name for name in before if name.endswith((".tmp", ".new"))]


def test_the_power_cut_takes_what_was_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measure itself: by hand, as it was done, neither the name nor the content is safe."""
    (tmp_path / "old").write_text("old")
    disk = PowerCut(tmp_path, monkeypatch)
    with (tmp_path / ".new").open("w") as file:
        file.write("new")
        file.flush()
        os.fsync(file.fileno())
    (tmp_path / ".new").rename(tmp_path / "unnamed")
    (tmp_path / "empty").write_text("new")
    durable.sync_folder(tmp_path)
    (tmp_path / "unnamed").rename(tmp_path / "again")
    disk.strike()
    assert contents(tmp_path) == {"old": b"old", "empty": b""}


def test_what_fails_leaves_the_file_of_before_and_nothing_beside_it(tmp_path: Path) -> None:
    durable.write(tmp_path / "file", "old", 0o600)
    with pytest.raises(ZeroDivisionError), durable.writing(tmp_path / "file") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert contents(tmp_path) == {"file": b"old"}
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(OSError, match="not empty"):
        durable.place(tmp_path / "folder", tmp_path / "full")
    name = "ä" * 127
    durable.write(tmp_path / name, "a name of 254 bytes")
    assert (tmp_path / name).is_file()
