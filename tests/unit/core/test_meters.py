"""Numbers that processes tell: whatever one writes, only what is in the table comes through."""

from __future__ import annotations

import json
import math
import re

import pytest

from elasticdl_core.meters import KEYS, METERS, read_meters, require_meter
from elasticdl_runtime.telemetry import meters

pytestmark = pytest.mark.unit


def answer(*values: object) -> bytes:
    return json.dumps({"answers": 1, "values": list(values)}).encode()


def test_numbers_of_the_table_are_read() -> None:
    told = answer(["elasticdl_worker_records_total", "", 7], ["elasticdl_worker_step_seconds", "pull", 0.5])
    assert read_meters(told) == {
        ("elasticdl_worker_records_total", ""): 7.0,
        ("elasticdl_worker_step_seconds", "pull"): 0.5,
    }


@pytest.mark.parametrize(
    "value",
    [
        ["made_up_by_a_tenant", "", 1],
        ["elasticdl_worker_step_seconds", "made up", 1],
        ["elasticdl_worker_records_total", "x", 1],
        ["elasticdl_worker_records_total", "", "1"],
        ["elasticdl_worker_records_total", "", True],
        ["elasticdl_worker_records_total", "", math.nan],
        ["elasticdl_worker_records_total", "", math.inf],
        ["elasticdl_worker_records_total", "", 10**400],
        ["elasticdl_worker_records_total", [], 1],
        [{}, "", 1],
        ["elasticdl_worker_records_total", ""],
        "elasticdl_worker_records_total",
        None,
    ],
)
def test_anything_else_is_left_out(value: object) -> None:
    assert read_meters(answer(value, ["elasticdl_process_threads", "", 3])) == {
        ("elasticdl_process_threads", ""): 3.0
    }


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"values": 3}', b"[" * 100_000, b"\xff"])
def test_what_is_no_answer_is_none(data: bytes) -> None:
    assert read_meters(data) is None


def test_the_table_keeps_the_conventions_of_prometheus() -> None:
    units = {"seconds", "bytes", "total", "info"}
    for meter in METERS.values():
        assert re.fullmatch(r"elasticdl_[a-z0-9_]+", meter.name)
        assert meter.help.endswith(".")
        assert (meter.label == "") == (meter.values == ("",))
        words = meter.name.split("_")
        for unit in units & set(words):
            assert words[-1] in units or "per" in words, f"{meter.name}: {unit} comes last"
    assert len(KEYS) < 100


def test_a_process_shows_what_is_in_the_table_and_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "_gauges", {})
    monkeypatch.setattr(meters, "_tables", {})
    with pytest.raises(LookupError, match="not in the table"):
        meters.show("elasticdl_unknown", lambda: 1.0)
    with pytest.raises(LookupError):
        require_meter("elasticdl_worker_step_seconds", "")
    meters.show("elasticdl_ps_rows", lambda: None)
    meters.show("elasticdl_ps_bytes", lambda: 1 / 0)
    meters.show_all("some", lambda: {("elasticdl_worker_tasks", ""): 2, ("elasticdl_worker_model_version", ""): None})
    told = {(name, label): value for name, label, value in meters.read()}
    assert told["elasticdl_worker_tasks", ""] == 2.0
    assert ("elasticdl_process_cpu_seconds_total", "") in told
    assert not {("elasticdl_ps_rows", ""), ("elasticdl_ps_bytes", ""), ("elasticdl_worker_model_version", "")} & set(
        told
    )
    assert set(told) <= KEYS
