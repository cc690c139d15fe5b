"""The parts of the api that need no database: decisions, values, files, settings, schemas."""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_api.background.loops import EVERY_S
from elasticdl_api.background.watchdog import (
    LEASE_GRACE_S,
    MAX_FAILURES,
    RETURN_GRACE_S,
    START_GRACE_S,
    Action,
    judge,
)
from elasticdl_api.files import access as files
from elasticdl_api.places.digests import ArtifactChangedError, unchanged_pieces
from elasticdl_api.schemas import jobs as schemas
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.intents import WatchedJob
from elasticdl_api.store.ledger import completed_epochs
from elasticdl_api.store.masters import LEASE_S
from elasticdl_api.store.records import JobRecord
from elasticdl_api.web.json_bodies import clean, parse_json
from elasticdl_api.web.problems import MalformedError
from elasticdl_core.errors import InvalidInputError, NotFoundError
from elasticdl_core.job import JobSpec
from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role
from elasticdl_core.task import TaskId, TaskType

pytestmark = pytest.mark.unit
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _watched(**changes: Any) -> WatchedJob:
    job_changes = {name: changes.pop(name) for name in ("state", "desired") if name in changes}
    job = {
        **dict.fromkeys((f.name for f in fields(JobRecord)), ""),
        "id": "j",
        "state": "RUNNING",
        "desired": "run",
        "master_incarnation": 2,
        "created_at": NOW,
        **job_changes,
    }
    values = {"lease_alive": True, "lease_incarnation": 2, "delivered": True, "outcome": "", "recent_failures": 0}
    return WatchedJob(job=JobRecord.of(job), **{**values, **changes})


def _process(state: ProcessState = ProcessState.RUNNING, code: int | None = None) -> ProcessStatus:
    return ProcessStatus(ProcessId("j", Role.MASTER, 0, 2), state, code)


DEAD = _process(ProcessState.EXITED, 1)
LEFT = _process(ProcessState.EXITED, 0)
TAKEN_ALONG = ProcessStatus(DEAD.id, ProcessState.EXITED, -9, "launcher_lost")
SENT_AWAY = ProcessStatus(DEAD.id, ProcessState.EXITED, -15, "terminated")
SILENT = {"lease_alive": False}


@pytest.mark.parametrize(
    ("watched", "process", "wrong_s", "action"),
    [
        (_watched(), _process(), 0, Action.NOTHING),
        (_watched(), DEAD, 0, Action.REPLACE),
        (_watched(delivered=False), None, 1e9, Action.NOTHING),
        (_watched(outcome="refused: no"), None, 0, Action.REPLACE),
        (_watched(), None, 1e9, Action.NOTHING),
        (_watched(**SILENT), None, 0, Action.WAIT),
        (_watched(**SILENT), None, 5, Action.REPLACE),
        (_watched(**SILENT), _process(), LEASE_GRACE_S - 1, Action.WAIT),
        (_watched(**SILENT), _process(), LEASE_GRACE_S, Action.REPLACE),
        (_watched(**SILENT, lease_incarnation=1), _process(), LEASE_GRACE_S, Action.WAIT),
        (_watched(**SILENT, lease_incarnation=1), _process(), START_GRACE_S, Action.REPLACE),
        (_watched(**SILENT, lease_incarnation=1), _process(ProcessState.PENDING), 1e9, Action.NOTHING),
        (_watched(**SILENT, desired="evict", state="STARTING"), _process(ProcessState.PENDING), 1e9, Action.CONCLUDE),
        (_watched(recent_failures=MAX_FAILURES - 1), DEAD, 0, Action.REPLACE),
        (_watched(recent_failures=MAX_FAILURES), DEAD, 0, Action.CONCLUDE),
        (_watched(recent_failures=MAX_FAILURES), LEFT, 0, Action.REPLACE),
        (_watched(recent_failures=MAX_FAILURES), TAKEN_ALONG, 0, Action.REPLACE),
        (_watched(recent_failures=MAX_FAILURES), SENT_AWAY, 0, Action.REPLACE),
        (_watched(state="STARTING", desired="evict"), DEAD, 0, Action.CONCLUDE),
        (_watched(state="RUNNING", desired="suspend"), DEAD, 0, Action.REPLACE),
        (_watched(state="CANCELLING"), _process(), 0, Action.WAIT),
        (_watched(state="CANCELLING"), _process(), 21, Action.CONCLUDE),
        (_watched(state="CANCELLING"), DEAD, 0, Action.CONCLUDE),
        (_watched(state="CANCELLING"), None, 0, Action.CONCLUDE),
    ],
)
def test_judge(watched: WatchedJob, process: ProcessStatus | None, wrong_s: float, action: Action) -> None:
    verdict = judge(watched, process, wrong_s)
    assert verdict.action is action
    assert bool(verdict.reason) == (action is not Action.NOTHING)


@pytest.mark.parametrize("process", [LEFT, TAKEN_ALONG, SENT_AWAY])
@pytest.mark.parametrize("before", [0, 3, MAX_FAILURES])
def test_a_master_that_left_as_told_costs_nothing(process: ProcessStatus, before: int) -> None:
    verdict = judge(_watched(recent_failures=before), process, 0)
    assert (verdict.action, verdict.failures, verdict.delay_s) == (Action.REPLACE, before, 0.0)


def test_after_the_api_was_away_masters_have_longer_to_be_heard() -> None:
    silent = _watched(**SILENT)
    assert judge(silent, _process(), LEASE_GRACE_S, returned=True).action is Action.WAIT
    assert judge(silent, _process(), RETURN_GRACE_S, returned=True).action is Action.REPLACE
    assert judge(silent, DEAD, 0, returned=True).action is Action.REPLACE


def test_a_silent_master_is_replaced_in_time() -> None:
    """Its lease, the grace and the watchdog's pace leave 4 s of 15 for the start of the next one."""
    assert LEASE_S + LEASE_GRACE_S + EVERY_S <= 11.0


def test_the_back_off_grows_and_is_bounded() -> None:
    delays = [judge(_watched(recent_failures=n), DEAD, 0).delay_s for n in range(MAX_FAILURES)]
    assert delays[0] == 0
    assert delays == sorted(delays)
    assert delays[-1] <= 16


@given(st.lists(st.integers(0, 60), min_size=1, max_size=4), st.data())
def test_a_round_is_complete_exactly_when_each_record_is_marked(sizes: list[int], data: st.DataObject) -> None:
    shards = [[f"s{number}", 3, 3 + size] for number, size in enumerate(sizes)]
    marks, missing, index = [], 0, 0
    for _, start, end in shards:
        for begin in range(start, end, 10):
            stop = min(begin + 10, end)
            middle = data.draw(st.integers(begin, stop))
            kind = data.draw(st.sampled_from(["whole", "parts", "overlap", "front"]))
            parts = {
                "whole": [(begin, stop)],
                "parts": [(begin, middle), (middle, stop)],
                "overlap": [(begin, middle), (begin, stop)],
                "front": [(begin, middle)],
            }[kind]
            missing += stop - middle if kind == "front" else 0
            marks += [str(TaskId(TaskType.TRAINING, 4, index, a, b)) for a, b in parts if a < b]
            index += 1
    rounds = completed_epochs({"shards": shards}, [*marks, "e:4:0:0:10"])
    if missing or not marks:
        assert rounds == []
    else:
        assert rounds == [{"round": 4, "tasks": len(marks), "records": sum(sizes)}]
    assert completed_epochs(None, marks) == []


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(_ANY)
def test_cleaned_values_are_strict_json(value: Any) -> None:
    text = json.dumps(clean(value), allow_nan=False)
    assert "\\u0000" not in text
    text.encode()


@given(_ANY)
def test_json_is_parsed_as_it_is_or_refused(value: Any) -> None:
    try:
        parsed = parse_json(json.dumps(value).encode("utf-8", "surrogatepass"))
    except MalformedError:
        assert value != clean(value) or _has_large_number(value)
    else:
        assert parsed == value == clean(value)


def _has_large_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_large_number(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_large_number(item) for item in value)
    return (isinstance(value, int) and abs(value) > 2**63 - 1) or (isinstance(value, float) and math.isinf(value))


def test_files_are_reached_without_links(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "a").mkdir(parents=True)
    (base / "a" / "f").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    (base / "link").symlink_to(tmp_path / "secret")
    (base / "a" / "up").symlink_to(tmp_path)
    os.mkfifo(base / "pipe")
    (base / "second").hardlink_to(tmp_path / "secret")
    before = len(list(Path("/proc/self/fd").iterdir()))
    descriptor = files.open_regular(base, "a/f")
    assert b"".join(files.read_pieces(descriptor)) == b"inside"
    os.close(descriptor)
    links = ("link", "a/up/secret", "second")
    for bad in (*links, "../secret", "/etc/passwd", "", ".", "a/none", "pipe", "a/f/x", "a\0"):
        with pytest.raises(NotFoundError):
            files.open_regular(base, bad)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_files_become_a_zip(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(b"a" * 600_000)
    (tmp_path / "sub" / "b").write_bytes(b"")
    names = ("a", "sub/b")
    opened = [files.open_regular(tmp_path, name) for name in names]
    members = [(name, files.read_pieces(descriptor)) for name, descriptor in zip(names, opened, strict=True)]
    with zipfile.ZipFile(io.BytesIO(b"".join(files.zip_pieces(members)))) as archive:
        assert archive.testzip() is None
        assert {info.filename: info.file_size for info in archive.infolist()} == {"a": 600_000, "sub/b": 0}
    for descriptor in opened:
        os.close(descriptor)


def test_a_file_that_changes_while_it_is_sent_does_not_come_whole(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"a" * 600_000)
    descriptor = files.open_regular(tmp_path, "model")
    pieces = unchanged_pieces(descriptor, "model")
    sent = len(next(pieces))
    with path.open("r+b") as file:
        file.write(b"b")
    with pytest.raises(ArtifactChangedError):
        for piece in pieces:
            sent += len(piece)
    assert sent < 600_000
    os.close(descriptor)


def test_settings_of_a_local_cluster(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t" * 20 + "\n")
    variables = {
        "ELASTICDL_DATA_DIR": str(tmp_path),
        "ELASTICDL_DATABASE_URL": "postgresql://u@h/d",
        "ELASTICDL_CLUSTER_SECRET": "s" * 20,
    }
    found = ApiSettings.read(variables)
    assert (found.admin_token, found.host, found.loopback) == ("t" * 20, "127.0.0.1", True)
    assert found.job_dir("j") == tmp_path / "jobs" / "j"
    beyond = {**variables, "ELASTICDL_API_HOST": "0.0.0.0"}
    with pytest.raises(InvalidInputError, match="TLS"):
        ApiSettings.read(beyond)
    assert not ApiSettings.read({**beyond, "ELASTICDL_API_PLAIN_HTTP": "true"}).loopback
    (tmp_path / "token").unlink()
    with pytest.raises(InvalidInputError, match="admin token"):
        ApiSettings.read(variables)


def test_the_schema_of_a_specification_describes_every_field() -> None:
    properties = schemas.spec_schema()["properties"]
    assert set(properties) == {field.name for field in fields(JobSpec)}
    assert properties["minibatch_size"]["description"].startswith("records of one model update, whatever")
    assert {name for name, about in properties.items() if not about.get("x-group")} == {"type"}
    assert properties["prediction_data"]["x-types"] == ["prediction"]
    assert properties["on_nan"]["enum"] == ["fail", "skip"]
    assert (properties["num_ps"]["minimum"], properties["num_ps"]["maximum"]) == (1, 1000)
    JobSpec.from_mapping(schemas.EXAMPLE_SPEC)
