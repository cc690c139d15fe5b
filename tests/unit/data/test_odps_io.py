"""What is there of the original's MaxCompute writer where MaxCompute is not."""

from __future__ import annotations

import pytest

from elasticdl.python.data.odps_io import ODPSWriter, is_odps_configured


def test_maxcompute_is_configured_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("MAXCOMPUTE_PROJECT", "MAXCOMPUTE_AK", "MAXCOMPUTE_SK")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert not is_odps_configured()
    for name in names:
        monkeypatch.setenv(name, "x")
    assert is_odps_configured()


def test_a_writer_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "odps", None)
    with pytest.raises(ImportError, match="pip install pyodps"):
        ODPSWriter("p", "id", "key", "http://127.0.0.1", "t")
