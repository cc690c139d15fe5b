"""Writes the templates of the Helm chart from the manifests of ``deploy/k8s``: one truth, and few values."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from elasticdl_agent.kubernetes.deployment import DeploymentOptions, manifests

CHART = Path(__file__).parents[1] / "deploy" / "helm" / "elasticdl"
_HEAD = "{{/* Made from deploy/k8s by ./dev docs: edit that. */}}\n"
_OPTIONS = DeploymentOptions("edl-space", "edl-node", "edl-services", "edl-class")
_WORDS = {
    "edl-space": "{{ .Release.Namespace }}",
    "image: edl-node": 'image: {{ required "image is required: registry/name:tag" .Values.image | quote }}',
    "value: edl-node": "value: {{ .Values.image | quote }}",
    "image: edl-services": "image: {{ .Values.servicesImage | default .Values.image | quote }}",
    "image: docker.io/library/postgres:18-alpine": "image: {{ .Values.postgresImage | quote }}",
    "image: docker.io/library/redis:7-alpine": "image: {{ .Values.redisImage | quote }}",
    "storage: 100Gi": "storage: {{ .Values.storageSize | quote }}",
    "storage: 10Gi": "storage: {{ .Values.storesSize | quote }}",
}
"""Texts that stand for values, once a manifest is text."""
_REPLICAS = {"elasticdl-api": "apiReplicas", "elasticdl-scheduler": "schedulerReplicas"}
_STORES = ("postgres", "redis")


def rendered() -> dict[str, str]:
    """The templates, by the names of their files."""
    files: dict[str, str] = {}
    for found in manifests(_OPTIONS):
        if found["kind"] != "Namespace":  # which Helm makes, if it is told to
            component = _component(found)
            text = _of_stores(_templated(found), component)
            files[f"{component}.yaml"] = files.get(f"{component}.yaml", _HEAD) + f"---\n{text}"
    return files


def _component(found: dict[str, Any]) -> str:
    name = found["metadata"]["name"].removeprefix("elasticdl-").removesuffix("-edl-space")
    if found["kind"] == "NetworkPolicy":
        return "network-stores" if name in _STORES else "network"
    return {"capacity": "agent", "jobs": "agent"}.get(name, name)


def _of_stores(text: str, component: str) -> str:
    if component not in (*_STORES, "network-stores"):
        return text
    return f"{{{{- if not .Values.databaseUrl }}}}\n{text}{{{{- end }}}}\n"


def _templated(found: dict[str, Any]) -> str:
    name = found["metadata"]["name"]
    if found["kind"] == "PersistentVolumeClaim":
        found["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
    if found["kind"] == "Deployment" and name in _REPLICAS:
        found["spec"]["replicas"] = "edl-replicas"
    text = yaml.safe_dump(found, sort_keys=False, width=200)
    for word, value in _WORDS.items():
        text = text.replace(word, value)
    text = text.replace("replicas: edl-replicas", f"replicas: {{{{ .Values.{_REPLICAS.get(name, '')} }}}}")
    text = re.sub(
        r"^( +)storageClassName: edl-class\n",
        r"{{- with .Values.storageClass }}\n\1storageClassName: {{ . | quote }}\n{{- end }}\n",
        text,
        flags=re.MULTILINE,
    )
    if found["kind"] in ("Deployment", "StatefulSet"):
        secrets = (
            "      {{- with .Values.imagePullSecrets }}\n      imagePullSecrets: {{ toJson . }}\n      {{- end }}\n"
        )
        text = text.replace("      automountServiceAccountToken:", f"{secrets}      automountServiceAccountToken:", 1)
    if (found["kind"], name) == ("Deployment", "elasticdl-agent"):
        settings = (
            "        {{- range $name, $value := .Values.agentSettings }}\n"
            "        - name: {{ $name | quote }}\n          value: {{ $value | quote }}\n        {{- end }}\n"
        )
        text = text.replace("        env:\n", f"        env:\n{settings}", 1)
    if (found["kind"], name) == ("Deployment", "elasticdl-api"):
        hosts = ".svc,localhost"
        text = text.replace(hosts, f"{hosts}{{{{ with .Values.allowedHosts }}}},{{{{ . }}}}{{{{ end }}}}")
    return text


def main() -> int:
    """Writes the templates, or with ``--check`` says which differ."""
    folder, made = CHART / "templates", rendered()
    if "--check" in sys.argv:
        known = {path.name: path.read_text() for path in folder.glob("*.yaml") if path.name != "secret.yaml"}
        wrong = sorted(name for name in {*known, *made} if known.get(name) != made.get(name))
        if wrong:
            print(f"{', '.join(wrong)} of {folder} differ from deploy/k8s: run ./dev docs", file=sys.stderr)
        return bool(wrong)
    for name, text in made.items():
        (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
