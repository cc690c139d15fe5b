"""The dashboard and the rules of deploy/observability: well-formed, and about metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl_api.scrape.families import FAMILIES, WHOSE
from elasticdl_api.web import telemetry
from elasticdl_core.job import JobState
from elasticdl_core.meters import METERS
from elasticdl_core.ports.launcher import Role

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3] / "deploy" / "observability"
RULES = ROOT / "prometheus" / "alerts.yml"
BOARD = ROOT / "grafana" / "dashboards" / "elasticdl.json"
_USE = re.compile(r"\b(elasticdl_[a-z0-9_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
OF_TARGETS = {"instance"}
VALUES = {"state": {str(state) for state in JobState} | {"target", "running", "pending"}}
ROLES = {str(role) for role in Role} | {"api", "agent", "scheduler"}


def exposed() -> dict[str, set[str]]:
    """The labels of all that the api exposes, by name."""
    found = {name: set(labels) for name, (_, labels) in FAMILIES.items()}
    found |= {name: {*WHOSE, *([meter.label] if meter.label else [])} for name, meter in METERS.items()}
    for family in telemetry.REGISTRY.collect():
        labels = set(telemetry_labels(family.name))
        suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}[family.type]
        for suffix in suffixes:
            found[family.name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    return found


def telemetry_labels(name: str) -> tuple[str, ...]:
    for one in vars(telemetry).values():
        if getattr(one, "_name", None) == name:
            return tuple(one._labelnames)
    raise AssertionError(f"{name} is registered by nobody")


def expressions() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    board = json.loads(BOARD.read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in board["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_everything_that_is_asked_for_is_exposed(where: str, expression: str) -> None:
    known = exposed()
    uses = list(_USE.finditer(expression))
    assert uses or expression.startswith("up{"), where
    for use in uses:
        assert use[1] in known, f"{where}: no process exposes {use[1]}"
        for label, operator, value in _MATCHER.findall(use[2] or ""):
            assert label in known[use[1]] | OF_TARGETS, f"{where}: {use[1]} has no label {label}"
            if operator == "=" and label in VALUES:
                assert value in VALUES[label], f"{where}: {value}"
            if label == "role":
                assert set(value.split("|")) <= ROLES, f"{where}: {value}"
    for left, right in ("()", "{}", "[]"):
        assert expression.count(left) == expression.count(right), where


def test_rules_say_what_is_the_matter_and_what_to_do() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    names = [rule["alert"] for rule in rules]
    assert len(names) == len(set(names))
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m")), rule["alert"]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]


def test_panels_lie_side_by_side_and_each_says_what_it_shows() -> None:
    board = json.loads(BOARD.read_text())
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or (panel["description"] and panel["targets"]), panel["title"]


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    provisioning = ROOT / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "elasticdl.yml").read_text())["providers"]
    assert provider["type"] == "file"


def test_the_scrape_keeps_the_labels_of_jobs_and_names_the_route() -> None:
    config: dict[str, Any] = yaml.safe_load((ROOT / "prometheus" / "prometheus.yml").read_text())
    (scrape,) = config["scrape_configs"]
    assert scrape["honor_labels"] is True
    assert scrape["metrics_path"] == "/metrics"
    assert scrape["authorization"]["credentials_file"]
    assert config["rule_files"] == [RULES.name]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (apt-get install prometheus)")
def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", RULES], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
