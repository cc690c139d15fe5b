"""Objects of the API: kinds, selectors, answers that refuse, quantities."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

Object = dict


@dataclass(frozen=True)
class Kind:
    """A kind of objects.

    Attributes:
        plural: as in paths.
        kind: as in objects.
        group: of its API; empty for the core.
        version: of the group.
        namespaced: whether it lives in namespaces.
    """

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """As in messages: ``pods``, ``poddisruptionbudgets.policy``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


KINDS = {
    kind.plural: kind
    for kind in (
        Kind("pods", "Pod"),
        Kind("secrets", "Secret"),
        Kind("configmaps", "ConfigMap"),
        Kind("services", "Service"),
        Kind("serviceaccounts", "ServiceAccount"),
        Kind("resourcequotas", "ResourceQuota"),
        Kind("persistentvolumeclaims", "PersistentVolumeClaim"),
        Kind("events", "Event"),
        Kind("nodes", "Node", namespaced=False),
        Kind("namespaces", "Namespace", namespaced=False),
        Kind("poddisruptionbudgets", "PodDisruptionBudget", "policy"),
        Kind("leases", "Lease", "coordination.k8s.io"),
        Kind("deployments", "Deployment", "apps"),
        Kind("statefulsets", "StatefulSet", "apps"),
        Kind("networkpolicies", "NetworkPolicy", "networking.k8s.io"),
        Kind("roles", "Role", "rbac.authorization.k8s.io"),
        Kind("rolebindings", "RoleBinding", "rbac.authorization.k8s.io"),
        Kind("clusterroles", "ClusterRole", "rbac.authorization.k8s.io", namespaced=False),
        Kind("clusterrolebindings", "ClusterRoleBinding", "rbac.authorization.k8s.io", namespaced=False),
        Kind("priorityclasses", "PriorityClass", "scheduling.k8s.io", namespaced=False),
    )
}


class Refusal(Exception):
    """An answer with a Status of failure.

    Args:
        code: the HTTP status.
        reason: in one word, as the API has it.
        message: in words.
        details: more of it.
    """

    def __init__(self, code: int, reason: str, message: str, **details: object) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details

    def status(self) -> Object:
        """As a Status object."""
        found: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "code": self.code,
        }
        more = {"reason": self.reason, "details": self.details}
        return {**found, **{name: value for name, value in more.items() if value}}


def not_found(kind: Kind, name: str) -> Refusal:
    return Refusal(404, "NotFound", f'{kind.resource} "{name}" not found', name=name, kind=kind.plural)


def invalid(kind: Kind, name: str, *causes: str) -> Refusal:
    told = causes[0] if len(causes) == 1 else f"[{', '.join(causes)}]"
    return Refusal(422, "Invalid", f'{kind.kind} "{name}" is invalid: {told}', name=name, kind=kind.kind)


def now() -> str:
    """The time as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"([+-]?[0-9.]+)(m|k|M|G|T|Ki|Mi|Gi|Ti|e[0-9]+)?")
_UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def amount(text: object) -> float:
    """What a quantity stands for."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"unable to parse quantity's suffix: {text!r}")
    unit = match[2] or ""
    return float(match[1]) * (10.0 ** int(unit[1:]) if unit.startswith("e") else _UNITS.get(unit, 1.0))


def requests_of(pod: Object) -> dict[str, float]:
    """What a pod requests: limits stand in where only they are given."""
    found: dict[str, float] = {"pods": 1.0}
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, text in asked.items():
            found[name] = found.get(name, 0.0) + amount(text)
    return found


def check_name(kind: Kind, name: str) -> None:
    """Refuses a name that no object of this kind can have."""
    if kind.plural == "services":
        if not _LABEL_1035.fullmatch(name) or len(name) > 63:
            raise invalid(kind, name, f'metadata.name: Invalid value: "{name}": a DNS-1035 label must consist of ...')
    elif not _SUBDOMAIN.fullmatch(name) or len(name) > 253:
        raise invalid(
            kind, name, f'metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of ...'
        )


def check_labels(kind: Kind, found: Object) -> None:
    for key, value in (found["metadata"].get("labels") or {}).items():
        if not isinstance(value, str) or len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
            raise invalid(
                kind,
                found["metadata"]["name"],
                f'metadata.labels: Invalid value: "{value}": a valid label must be ...',
            )
        if not key or len(key.rpartition("/")[2]) > 63:
            raise invalid(kind, found["metadata"]["name"], f'metadata.labels: Invalid value: "{key}": name part ...')


Match = Callable[[Object], bool]


def label_selector(text: str) -> Match:
    """Reads a selector of labels."""
    tests: list[Callable[[dict], bool]] = []
    for part in filter(None, (one.strip() for one in re.split(r",(?![^(]*\))", text))):
        if match := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", part):
            values = {one.strip() for one in match[3].split(",")}
            inside = match[2] == "in"
            tests.append(
                lambda labels, key=match[1], values=values, inside=inside: (labels.get(key) in values) == inside
            )
        elif "!=" in part:
            key, value = (one.strip() for one in part.split("!=", 1))
            tests.append(lambda labels, key=key, value=value: labels.get(key) != value)
        elif "=" in part:
            key, value = (one.strip() for one in part.replace("==", "=").split("=", 1))
            if not _LABEL_VALUE.fullmatch(value):
                raise Refusal(400, "BadRequest", f'unable to parse requirement: found "{value}"')
            tests.append(lambda labels, key=key, value=value: labels.get(key) == value)
        elif part.startswith("!"):
            tests.append(lambda labels, key=part[1:]: key not in labels)
        elif re.fullmatch(r"[-A-Za-z0-9_./]+", part):
            tests.append(lambda labels, key=part: key in labels)
        else:
            raise Refusal(400, "BadRequest", f'unable to parse requirement: found "{part}"')
    return lambda found: all(test(found["metadata"].get("labels") or {}) for test in tests)


_FIELDS: dict[str, Callable[[Object], str]] = {
    "metadata.name": lambda found: found["metadata"]["name"],
    "metadata.namespace": lambda found: found["metadata"].get("namespace", ""),
}
_POD_FIELDS: dict[str, Callable[[Object], str]] = {
    **_FIELDS,
    "status.phase": lambda found: (found.get("status") or {}).get("phase", ""),
    "spec.nodeName": lambda found: found["spec"].get("nodeName", ""),
    "spec.restartPolicy": lambda found: found["spec"].get("restartPolicy", ""),
    "status.podIP": lambda found: (found.get("status") or {}).get("podIP", ""),
}


def field_selector(kind: Kind, text: str) -> Match:
    """Reads a selector of fields: only few may be asked for."""
    known = _POD_FIELDS if kind.plural == "pods" else _FIELDS
    tests: list[Match] = []
    for part in filter(None, text.split(",")):
        name, unequal, value = part.partition("!=") if "!=" in part else part.replace("==", "=").partition("=")
        if name not in known:
            raise Refusal(400, "BadRequest", f"field label not supported: {name}")
        wanted = unequal != "!="
        tests.append(lambda found, read=known[name], value=value, wanted=wanted: (read(found) == value) == wanted)
    return lambda found: all(test(found) for test in tests)
