"""The Helm chart: what its templates make is the deployment of ``elasticdl up --kubernetes``, and valid."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from elasticdl_agent.kubernetes.deployment import DeploymentOptions, manifests, path_of

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "elasticdl"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
GIVEN = {
    ".Release.Namespace": "ml",
    ".Values.image | quote": '"r/e:1"',
    'required "image is required: registry/name:tag" .Values.image | quote': '"r/e:1"',
    ".Values.servicesImage | default .Values.image | quote": '"r/e:1"',
    ".Values.postgresImage | quote": VALUES["postgresImage"],
    ".Values.redisImage | quote": VALUES["redisImage"],
    ".Values.storageSize | quote": VALUES["storageSize"],
    ".Values.storesSize | quote": VALUES["storesSize"],
    ".Values.apiReplicas": str(VALUES["apiReplicas"]),
    ".Values.schedulerReplicas": str(VALUES["schedulerReplicas"]),
    "with .Values.allowedHosts": "",
    "end": "",
    "toJson .": '[{"name": "reg"}]',
    "$name | quote": '"ELASTICDL_SLOTS"',
    "$value | quote": '"8"',
    ". | quote": '"nfs"',
    ".": "",
}
"""What expressions of the templates stand for here; another one is a KeyError."""


def made() -> dict[str, Any]:
    """The objects of all templates with all that is optional, by their paths."""
    found = {}
    for file in (CHART / "templates").glob("*.yaml"):
        if file.name == "secret.yaml":  # which is made of random texts
            continue
        lines = [line for line in file.read_text().splitlines() if not re.fullmatch(r" *\{\{[-/].*\}\}", line)]
        text = re.sub(r"\{\{ (.*?) \}\}", lambda match: GIVEN[match[1]], "\n".join(lines)).replace(
            "localhost,", "localhost"
        )
        found |= {path_of(one): one for one in yaml.safe_load_all(text) if one}
    return found


def test_the_templates_make_what_the_command_makes() -> None:
    found = made()
    for one in found.values():
        pod = one.get("spec", {}).get("template", {}).get("spec", {})
        if one["kind"] in ("Deployment", "StatefulSet"):
            assert pod.pop("imagePullSecrets") == [{"name": "reg"}]
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", "elasticdl-agent"):
            assert pod["containers"][0]["env"].pop(0) == {"name": "ELASTICDL_SLOTS", "value": "8"}
        if one["kind"] == "PersistentVolumeClaim":
            assert one["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    wanted = {path_of(one): one for one in manifests(DeploymentOptions("ml", "r/e:1", storage_class="nfs"))}
    wanted.pop("/api/v1/namespaces/ml")
    assert found == wanted


def test_what_the_options_add_is_valid() -> None:
    for one in made().values():
        if one["kind"] in ("Deployment", "StatefulSet", "PersistentVolumeClaim"):
            kubernetes_validate.validate(one, "1.37", strict=True)


def test_the_values_are_few_and_described() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    used = {
        name for file in (CHART / "templates").iterdir() for name in re.findall(r"\.Values\.(\w+)", file.read_text())
    }
    assert used == set(VALUES) == set(schema["properties"]) - {"global"}
    assert len(VALUES) <= 25 and schema["additionalProperties"] is False


def test_the_chart_has_the_version_of_the_product() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["version"] == chart["appVersion"] == version
