"""The files of a cluster: who it is, what opens it, and who may read that."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from elasticdl_agent.cluster import postgres
from elasticdl_agent.cluster.options import ClusterOptions
from elasticdl_agent.cluster.supervisor import Supervisor
from elasticdl_core.errors import ConflictError, InvalidInputError
from elasticdl_core.scheduling import POLICIES
from elasticdl_runtime.cluster import ClusterAddress, locate
from elasticdl_runtime.cluster.paths import DataDirectory, default_data_dir, private_folder
from elasticdl_runtime.cluster.secrets import derive, ensure_secret_file, read_secret_file
from elasticdl_runtime.cluster.state import ClusterState, ComponentState, DataLock

pytestmark = pytest.mark.unit

DAY_S = 24 * 3600.0


def state_of(pid: int, started: float) -> ClusterState:
    return ClusterState(
        pid,
        started,
        "http://127.0.0.1:8850",
        4,
        "/data",
        "/run",
        "0.1.0",
        True,
        {"api": ComponentState("api", "running", 12, "detail", 1)},
    )


def my_state() -> ClusterState:
    me = psutil.Process()
    return state_of(me.pid, me.create_time())


def test_the_state_reads_as_it_was_written_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    my_state().write(path)
    assert ClusterState.read(path) == my_state()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["cluster.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"components": {"api": {"unknown": 1}}}', '"x"'])
def test_a_state_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(text)
    assert ClusterState.read(path) is None


def test_a_pid_that_was_used_again_is_not_the_supervisor() -> None:
    me = psutil.Process()
    assert my_state().alive()
    assert not state_of(me.pid, me.create_time() - 60).alive()
    assert not state_of(1 << 22, 0.0).alive()


def test_locate_finds_a_running_cluster_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICDL_DATA_DIR", str(tmp_path))
    assert locate() is None
    state_of(1 << 22, 0.0).write(tmp_path / "cluster.json")
    assert locate() is None
    my_state().write(tmp_path / "cluster.json")
    with pytest.raises(InvalidInputError, match="elasticdl up"):
        locate()
    token = ensure_secret_file(tmp_path / "token")
    assert locate() == locate(tmp_path) == ClusterAddress("http://127.0.0.1:8850", token)
    assert token not in repr(locate())


def test_the_data_directory_is_the_variable_or_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICDL_DATA_DIR", "~/x")
    assert default_data_dir() == Path.home() / "x"
    monkeypatch.delenv("ELASTICDL_DATA_DIR")
    assert default_data_dir() == Path.home() / ".elasticdl"


def test_a_secret_is_made_once_and_is_private(tmp_path: Path) -> None:
    first = ensure_secret_file(tmp_path / "token")
    assert len(first) == 43
    assert ensure_secret_file(tmp_path / "token") == first == read_secret_file(tmp_path / "token")
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert ensure_secret_file(tmp_path / "other") != first


def test_an_empty_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    with pytest.raises(InvalidInputError, match="empty"):
        ensure_secret_file(tmp_path / "token")


def test_derived_secrets_differ_by_purpose_and_by_cluster() -> None:
    made = {derive(secret, purpose) for secret in ("a", "b") for purpose in ("node", "redis", "postgres")}
    assert len(made) == 6
    assert derive("a", "node") == derive("a", "node")


def test_a_second_holder_does_not_get_the_lock(tmp_path: Path) -> None:
    first, second = DataLock(tmp_path / "lock"), DataLock(tmp_path / "lock")
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()


def test_a_private_folder_is_private_and_stays_ours(tmp_path: Path) -> None:
    private_folder(tmp_path / "run")
    private_folder(tmp_path / "run")
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    (tmp_path / "run").chmod(0o750)
    with pytest.raises(InvalidInputError, match="open to others"):
        private_folder(tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(InvalidInputError, match="link"):
        private_folder(tmp_path / "link")


def test_a_folder_that_cannot_be_made_is_named_with_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match=r"file/run cannot be made: Not a directory") as caught:
        private_folder(tmp_path / "file" / "run")
    assert "TMPDIR or ELASTICDL_RUN_DIR" in caught.value.fix


def test_sockets_follow_tmpdir_and_the_run_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = DataDirectory(Path("/data"))
    for variables, user, run, sockets in [
        ({}, 0, f"/tmp/elasticdl-{os.getuid()}/{directory.key}", f"/tmp/elasticdl-pg-0-{directory.key}"),
        (
            {"TMPDIR": "/mnt"},
            0,
            f"/mnt/elasticdl-{os.getuid()}/{directory.key}",
            f"/mnt/elasticdl-pg-0-{directory.key}",
        ),
        ({"TMPDIR": "/mnt"}, 7, f"/mnt/elasticdl-{os.getuid()}/{directory.key}", None),
        ({"TMPDIR": "/mnt", "ELASTICDL_RUN_DIR": "/run/own"}, 0, "/run/own", "/run/own-postgres"),
        ({"ELASTICDL_RUN_DIR": "/run/own"}, 7, "/run/own", None),
        (
            {"TMPDIR": "/" + "long" * 10},
            0,
            f"/tmp/elasticdl-{os.getuid()}/{directory.key}",
            f"/tmp/elasticdl-pg-0-{directory.key}",
        ),
        ({"TMPDIR": "/a b%20"}, 7, f"/tmp/elasticdl-{os.getuid()}/{directory.key}", None),
        ({"ELASTICDL_RUN_DIR": "/" + "long" * 25}, 0, "/" + "long" * 25, f"/tmp/elasticdl-pg-0-{directory.key}"),
    ]:
        for name in ("TMPDIR", "ELASTICDL_RUN_DIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert str(directory.run) == run
        assert str(directory.postgres_sockets(directory.run)) == (sockets or f"{run}/postgres")


@pytest.mark.parametrize("name", ["a b", "50%", "größe", "a,b", "q?x", "h#1", "it's"])
def test_a_run_directory_whose_sockets_have_no_address_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("ELASTICDL_RUN_DIR", str(tmp_path / name))
    with pytest.raises(InvalidInputError, match="cannot hold sockets"):
        DataDirectory(tmp_path / "data").prepare()
    assert not (tmp_path / name).exists()


def test_postgres_needs_a_user_to_run_as(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4_190_000)
    with pytest.raises(InvalidInputError, match="user 4190000 has no name") as caught:
        postgres.require_user()
    assert "useradd --uid 4190000" in caught.value.fix and "--database-url" in caught.value.fix
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(postgres, "_capabilities", lambda: ~(1 << 7))
    with pytest.raises(InvalidInputError, match="capabilities SETUID"):
        postgres.require_user()


def test_the_run_directory_is_short_and_the_same_for_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    directory = DataDirectory(tmp_path / ("long" * 30))
    assert len(str(directory.run)) < 40
    assert directory.run == DataDirectory(directory.root).run != DataDirectory(tmp_path).run


def test_a_data_directory_is_where_links_lead_unless_they_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    (tmp_path / "unmounted").symlink_to("nowhere")
    assert DataDirectory(tmp_path / "link").root == tmp_path / "disk"
    assert DataDirectory(tmp_path / "link" / "new").root == tmp_path / "disk" / "new"
    for lost in (tmp_path / "unmounted", tmp_path / "unmounted" / "new"):
        with pytest.raises(InvalidInputError, match="cannot be used"):
            DataDirectory(lost).prepare()
    assert not (tmp_path / "nowhere").exists()


async def test_a_run_directory_in_which_another_cluster_lives_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICDL_RUN_DIR", str(tmp_path / "run"))
    living, other = DataDirectory(tmp_path / "living"), DataDirectory(tmp_path / "other")
    living.prepare()
    lock = DataLock(living.run_lock)
    assert lock.acquire()
    (living.run / "agent.sock").touch()
    supervisor = Supervisor(ClusterOptions(data_dir=other.root), lambda _step: None)
    with pytest.raises(ConflictError, match="another cluster has its sockets") as refused:
        await supervisor.run(asyncio.Event())
    assert "ELASTICDL_RUN_DIR" in refused.value.fix
    assert (living.run / "agent.sock").exists()
    assert DataLock(other.lock).acquire(), "its own lock is free again"
    lock.release()


def test_prepare_makes_everything_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICDL_RUN_DIR", str(tmp_path / "run"))
    directory = DataDirectory(tmp_path / "data")
    directory.prepare()
    for made in (directory.root, directory.logs, directory.redis, directory.root / "jobs", directory.run):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700 and made.stat().st_uid == os.getuid()


def test_default_options_can_work() -> None:
    ClusterOptions().check()
    assert ClusterOptions().slots >= 2


def test_a_policy_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    for name in POLICIES:
        ClusterOptions(policy=name).check()
    with pytest.raises(InvalidInputError, match="there is no scheduling policy 'nope'") as caught:
        ClusterOptions(policy="nope").check()
    assert all(name in caught.value.fix for name in POLICIES)


def test_clusters_that_come_up_at_once_tidy_up_after_lost_ones_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_SHARED", tmp_path)
    (tmp_path / "clusters").mkdir()
    gone = Path(tempfile.gettempdir()).resolve() / "no-such-cluster-of-ours"
    for number in range(200):
        (tmp_path / "clusters" / str(number)).mkdir()
        note = tmp_path / "clusters" / f"{number}.owner"
        note.write_text(str(gone / str(number)))
        os.utime(note, (0, time.time() - 11 * DAY_S))
    begin = threading.Barrier(4)

    def tidy() -> None:
        begin.wait(30)
        postgres._forget_lost_homes()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(tidy) for _ in range(4)]:
            done.result(timeout=60)
    assert list((tmp_path / "clusters").iterdir()) == []


@pytest.mark.parametrize("newer", ["note", "database"])
def test_data_that_were_used_lately_are_not_lost_though_nothing_leads_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer: str
) -> None:
    monkeypatch.setattr(postgres, "_SHARED", tmp_path)
    note, used = tmp_path / "clusters/1.owner", tmp_path / "clusters/1/data/global/pg_control"
    used.parent.mkdir(parents=True)
    used.touch()
    note.write_text(f"{Path(tempfile.gettempdir()).resolve()}/no-such-cluster-of-ours/postgres\n")
    for file in (note, used):
        os.utime(file, (0, time.time() - (9 if (file is note) == (newer == "note") else 11) * DAY_S))
    postgres._forget_lost_homes()
    assert used.exists() and note.exists()
    for file in (note, used):
        os.utime(file, (0, time.time() - 11 * DAY_S))
    postgres._forget_lost_homes()
    assert list((tmp_path / "clusters").iterdir()) == []
