"""Files that a job reads, at the time of use: what a link leads to counts, whenever it was made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl.data import create_data_reader, files
from elasticdl.data.errors import DataError
from elasticdl.model_check import check_model_module
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.path_policy import PathPolicy
from elasticdl_runtime.path_checks import OutOfReachError, open_within, require_reach

SECRET = "canary-7f3a,1\n"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "mine"
    folder.mkdir()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "secret.csv").write_text(SECRET)
    (theirs / "secret.py").write_text("canary-7f3a is no Python (\n")
    (folder / "own.csv").write_text("a,b\n1,2\n3,4\n")
    return folder


@pytest.fixture
def reach(mine: Path) -> PathPolicy:
    return PathPolicy(read=(str(mine),), write=(str(mine / "out"),))


@pytest.fixture
def confined(reach: PathPolicy) -> Iterator[None]:
    files.confine(reach)
    yield
    files.confine(None)


def test_a_link_that_leaves_is_refused(mine: Path, reach: PathPolicy) -> None:
    (mine / "link").symlink_to(mine.parent / "theirs")
    for path in (mine / "link", mine / "link" / "secret.csv", mine / "link" / "nothing", mine.parent / "theirs"):
        with pytest.raises(OutOfReachError):
            require_reach(path, reach)
        with pytest.raises(OutOfReachError):
            open_within(path, reach)
    assert require_reach(mine / "own.csv", reach) == mine / "own.csv"
    assert require_reach(mine / "out" / "new" / "model", reach, writing=True) == mine / "out" / "new" / "model"
    with pytest.raises(OutOfReachError):
        require_reach(mine / "own.csv", reach, writing=True)


def test_a_link_that_changes_between_check_and_open_is_noticed(
    mine: Path, reach: PathPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = mine / "later.csv"
    target.write_text("1,2\n")
    open_file = os.open

    def swap_then_open(path: str, flags: int, *rest: int) -> int:
        target.unlink()
        target.symlink_to(mine.parent / "theirs" / "secret.csv")
        return open_file(path, flags, *rest)

    monkeypatch.setattr(os, "open", swap_then_open)
    with pytest.raises(OutOfReachError):
        open_within(target, reach)


def test_only_regular_files_are_opened(mine: Path, reach: PathPolicy) -> None:
    os.mkfifo(mine / "pipe")
    for path in (mine / "pipe", mine):
        with pytest.raises(OSError, match="regular"):
            open_within(path, reach)


@pytest.mark.usefixtures("confined")
@pytest.mark.parametrize("form", ["{0}/link", "{0}/link/*", "{0}/*/*.csv", "{0}", "{0}/link/secret.csv", "{0}/s.csv"])
def test_readers_follow_no_link_out(mine: Path, form: str) -> None:
    (mine / "link").symlink_to(mine.parent / "theirs")
    (mine / "s.csv").symlink_to(mine.parent / "theirs" / "secret.csv")
    with pytest.raises(DataError) as refused:
        list(create_data_reader(form.format(mine)).create_shards())
    assert "canary" not in str(refused.value)
    assert "secret.py" not in str(refused.value)


@pytest.mark.usefixtures("confined")
@pytest.mark.parametrize("place", ["/etc/passwd", "/", "file:///etc/passwd", "local:///etc/passwd", "memory://x"])
def test_readers_take_no_place_elsewhere(place: str) -> None:
    with pytest.raises(DataError):
        list(create_data_reader(place).create_shards())
    for read in (files.open_for_reading, files.stamp):
        with pytest.raises(DataError):
            read(place)


@pytest.mark.usefixtures("confined")
def test_a_confined_reader_reads_what_is_its_own(mine: Path) -> None:
    (mine / "alias.csv").symlink_to("own.csv")
    for origin in (mine / "own.csv", mine / "al*.csv", mine):
        assert next(shard.end for shard in create_data_reader(str(origin)).create_shards()) == 2
    with pytest.raises(DataError, match="no such file") as missing:
        list(create_data_reader(str(mine / "owm.csv")).create_shards())
    assert "own.csv" in missing.value.fix


@pytest.mark.parametrize("module", ["link.f", "folder.secret.f"])
def test_a_module_that_is_a_link_out_shows_nothing(mine: Path, reach: PathPolicy, module: str) -> None:
    (mine / "link.py").symlink_to(mine.parent / "theirs" / "secret.py")
    (mine / "folder").symlink_to(mine.parent / "theirs")
    spec = JobSpec.from_mapping({"model_def": module, "model_zoo": str(mine), "training_data": "/x"})
    with pytest.raises(UserCodeError, match="outside") as refused:
        check_model_module(mine, spec, reach=reach)
    assert "canary" not in f"{refused.value} {refused.value.traceback}"
