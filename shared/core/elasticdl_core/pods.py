"""Requests of a job for its pods, and the rules of an administrator about them.

Written as the original project writes them. A launcher that makes processes has no pods, and refuses them by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

from elasticdl_core.devices import parse_request
from elasticdl_core.errors import InvalidInputError, Problem

PULL_POLICIES = ("", "Always", "IfNotPresent", "Never")
MOUNTABLE = ("/mnt/", "/data/", "/srv/")
"""Where a job's volumes may be mounted: anywhere else they could take the place of our own code."""
_NUMBER, _UNIT, _EXPONENT = r"([0-9]+\.?[0-9]*|\.[0-9]+)", r"([numkMGTPE]|[KMGTPE]i)", r"[eE][+-]?[0-9]{1,3}"
QUANTITY = rf"{_NUMBER}({_UNIT}|{_EXPONENT})?"
IMAGE = r"[a-z0-9][A-Za-z0-9._/:@-]*"
CLAIM = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
LABEL = r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
"""Forms of whole texts: of an amount, an image, a claim (or the domain of a label), the value of a label."""
LABEL_CHARS = 63
_QUANTITY = re.compile(rf"(?P<number>{_NUMBER})((?P<unit>{_UNIT})|(?P<exponent>{_EXPONENT}))?", re.ASCII)
_DECIMAL = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_UNITS = {**_DECIMAL, **{f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", start=1)}}
_RESOURCES = {"cpu": "cpu", "memory": "memory", "disk": "disk", "ephemeral-storage": "disk", "gpu": "gpu"}
_LEAST = {"cpu": 0.001, "memory": 2.0**20, "disk": 2.0**20}
_MOST = {"cpu": 10_000.0, "memory": 2.0**44, "disk": 2.0**50}
_FORM = "write cpu=2,memory=4Gi,disk=10Gi,gpu=1, or some of them"
_IMAGE = re.compile(IMAGE, re.ASCII)
_LABEL = re.compile(LABEL, re.ASCII)
_CLAIM = re.compile(CLAIM, re.ASCII)


def quantity(text: str | float) -> float:
    """The number that a quantity of Kubernetes stands for, such as ``250m`` or ``2Gi``.

    Raises:
        InvalidInputError: it is none.
    """
    number, unit = _parts(str(text))
    return float(number) * _UNITS[unit]


def times(text: str, factor: int) -> str:
    """A multiple of a quantity, to the last digit."""
    number, unit = _parts(text)
    return f"{Decimal(number) * factor:f}{unit}"


def _parts(text: str) -> tuple[str, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InvalidInputError(f"{text[:100]!r} is no amount", fix="write it as Kubernetes does: 2, 500m, 2Gi")
    return match["number"] + (match["exponent"] or ""), match["unit"] or ""


def parse_pairs(text: str, separator: str) -> dict[str, str]:
    """Reads ``name=value,name=value``.

    Raises:
        InvalidInputError: it is not written so.
    """
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(separator))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise InvalidInputError(f"{part!r} is no name=value", fix=f"write name=value{separator}name=value")
        if name.strip() in pairs:
            raise InvalidInputError(f"{name.strip()[:60]!r} is there twice", fix="give each name once")
        pairs[name.strip()] = value.strip()
    return pairs


def parse_volumes(text: str) -> list[dict[str, str]]:
    """Reads volumes in the original project's way: ``claim_name=c1,mount_path=/a;host_path=/b,mount_path=/b``.

    Raises:
        InvalidInputError: one is malformed, or of another kind.
    """
    found = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        volume = parse_pairs(part, ",")
        unknown = set(volume) - {"claim_name", "host_path", "mount_path", "sub_path", "read_only"}
        if unknown or ("claim_name" in volume) == ("host_path" in volume) or "mount_path" not in volume:
            raise InvalidInputError(
                f"{part!r} is no volume",
                fix="write claim_name=NAME,mount_path=/PATH or host_path=/PATH,mount_path=/PATH, and if you like "
                "sub_path=PATH and read_only=true",
            )
        if volume.get("read_only", "false").lower() not in ("true", "false"):
            raise InvalidInputError(
                f"read_only={volume['read_only']} is neither true nor false", fix="write read_only=true"
            )
        found.append(volume)
    return found


@dataclass(frozen=True, slots=True)
class RoleRequest:
    """The resources that one process of a role asks for.

    Attributes:
        cpu: cores, as a quantity; empty for what the launcher gives.
        memory_mib: MiB; 0 for what the launcher gives.
        disk: bytes on the disk of its node, as a quantity; empty for no limit.
        device_share: hundredths of a device.
    """

    cpu: str = ""
    memory_mib: int = 0
    disk: str = ""
    device_share: int = 0


def parse_resources(text: str) -> RoleRequest:
    """Reads what one process of a role asks for, such as ``cpu=2,memory=4Gi,gpu=1``; empty for nothing.

    Raises:
        InvalidInputError: it asks for something else, twice for the same, or for an amount that cannot be given.
    """
    asked: dict[str, str] = {}
    for part in text.split(",") if text.strip() else ():
        name, equals, amount = (piece.strip() for piece in part.partition("="))
        kind = _RESOURCES.get(name, "")
        if not kind or not equals or kind in asked:
            raise InvalidInputError(f"{part.strip()[:40]!r} cannot be asked for", fix=_FORM)
        if kind != "gpu" and not _LEAST[kind] <= quantity(amount) <= _MOST[kind]:
            raise InvalidInputError(f"{part.strip()[:40]} is no amount of it that a process can have", fix=_FORM)
        asked[kind] = amount
    return RoleRequest(
        asked.get("cpu", ""),
        math.ceil(quantity(asked.get("memory", 0)) / 2**20),
        asked.get("disk", ""),
        parse_request(f"gpu={asked['gpu']}") if "gpu" in asked else 0,
    )


def without_memory(text: str) -> str:
    """The rest of what one process asks for, in the same words."""
    return ",".join(part for part in text.split(",") if part.partition("=")[0].strip() != "memory")


@dataclass(frozen=True, slots=True)
class PodRequest:
    """The parts of a process that only a pod has; each is empty where the launcher decides.

    Attributes:
        image: what it runs in.
        image_pull_policy: when its node asks for that image.
        cpu: cores that it requests, and may use.
        disk: bytes of its node's disk that it requests, and may use.
        volume: volumes that it sees besides, as ``parse_volumes`` reads them.
        node_selector: labels of the nodes that it may run on.
    """

    image: str = ""
    image_pull_policy: str = ""
    cpu: str = ""
    disk: str = ""
    volume: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def asked(self) -> dict[str, Any]:
        """The parts that are asked for, by name."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name))}


@dataclass(frozen=True, slots=True)
class PodRules:
    """The rules of an administrator for what jobs ask of their pods.

    Attributes:
        images: patterns of images that jobs may name (``*`` stands for any characters).
        claims: patterns of PersistentVolumeClaims that jobs may mount.
        cluster_claim: the one that the cluster's own data lies on: no job mounts it.
        data_dir: where pods have that; nothing is mounted over it.
        most_cpu: cores that one pod may ask for; empty for any number.
        most_memory: the same of memory.
        node_selector: labels of all nodes that run jobs.
    """

    images: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    cluster_claim: str = ""
    data_dir: str = ""
    most_cpu: str = ""
    most_memory: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)

    def problems(self, request: PodRequest, role: str, memory_mib: int) -> Iterator[Problem]:
        """Yields what is asked for and not allowed, by the field of the job that asks.

        Args:
            request: of a process.
            role: its role.
            memory_mib: that it asks for; 0 for none.
        """
        if request.image and not any(fnmatchcase(request.image, one) for one in self.images):
            yield Problem("image", f"jobs may not run in {request.image}", _allowed("IMAGES", self.images))
        for volume in parse_volumes(request.volume):
            claim = volume.get("claim_name", "")
            if claim == self.cluster_claim or not any(fnmatchcase(claim, one) for one in self.claims):
                named = claim or volume["host_path"]
                yield Problem("volume", f"jobs may not mount {named}", _allowed("CLAIMS", self.claims))
            if self.data_dir and _overlap(volume["mount_path"], self.data_dir):
                yield Problem(
                    "volume", f"{volume['mount_path']} would hide the job's own files", "choose another mount_path"
                )
        for name, value in request.node_selector.items():
            if self.node_selector.get(name, value) != value:
                yield Problem(
                    "node_selector",
                    f"jobs of this cluster run on nodes with {name}={self.node_selector[name]}",
                    "leave that label out",
                )
        memory = f"{memory_mib}Mi" if memory_mib else ""
        for kind, asked, most in (("cpu", request.cpu, self.most_cpu), ("memory", memory, self.most_memory)):
            if asked and most and quantity(asked) > quantity(most):
                where = f"{role}_memory_mib" if kind == "memory" and role != "master" else f"{role}_resource_request"
                yield Problem(where, f"a pod may have {kind}={most} at most", "ask for less")


def image_problem(image: str) -> str:
    """A word on what is no name of an image; empty where it is one."""
    return "" if not image or _IMAGE.fullmatch(image) else f"{ascii(image)[:100]} is no name of an image"


def volume_problem(text: str) -> tuple[str, str]:
    """The reason why no job can mount these volumes, and what to do; empty where one can.

    Raises:
        InvalidInputError: they cannot be read.
    """
    for volume in parse_volumes(text):
        path, below = volume["mount_path"], volume.get("sub_path", "")
        if "host_path" in volume:
            return (
                "a folder of a node is nothing that a job may mount",
                "mount a claim: claim_name=NAME,mount_path=/mnt/NAME",
            )
        if not _CLAIM.fullmatch(volume["claim_name"]):
            return f"{ascii(volume['claim_name'])[:60]} is no name of a claim", "give that of a PersistentVolumeClaim"
        if not path.startswith(MOUNTABLE) or _leads_away(path) or ":" in path or _overlap(path, "/mnt/elasticdl"):
            where = f"mount it below one of {', '.join(MOUNTABLE)}, and not at /mnt/elasticdl"
            return f"{ascii(path)[:60]} is no place for a job's volume", where
        if below.startswith("/") or _leads_away(below):
            return f"sub_path={ascii(below)[:60]} leads out of the volume", "give a path below it"
    return "", ""


def selector_problem(labels: Mapping[str, str]) -> str:
    """A word on what are no labels of nodes; empty where they are."""
    for name, value in labels.items():
        prefix, slash, bare = name.rpartition("/")
        wrong = not bare or (slash and not _CLAIM.fullmatch(prefix))
        if wrong or any(len(one) > LABEL_CHARS or not _LABEL.fullmatch(one) for one in (bare, value)):
            return f"{ascii(name)[:60]}={ascii(value)[:60]} is no label of a node"
    return ""


def _overlap(one: str, other: str) -> bool:
    first, second = one.rstrip("/") + "/", other.rstrip("/") + "/"
    return first.startswith(second) or second.startswith(first)


def _leads_away(path: str) -> bool:
    return ".." in path.split("/") or "//" in path


def _allowed(name: str, patterns: tuple[str, ...]) -> str:
    allowed = f"name one of {', '.join(patterns)}" if patterns else "leave it out"
    return f"{allowed}; an administrator can allow more with ELASTICDL_KUBERNETES_JOB_{name}"
