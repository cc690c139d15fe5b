"""The settings of an agent whose launcher is Kubernetes."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from elasticdl_agent.processes.credentials import DEFAULT_HOURS
from elasticdl_agent.table import KEEP_ENDED
from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.settings import ProcessSettings

_PLAIN = "ELASTICDL_"
_QUANTITY = re.compile(
    r"(?P<number>([0-9]+\.?[0-9]*|\.[0-9]+))((?P<unit>[numkMGTPE]|[KMGTPE]i)|(?P<exponent>[eE][+-]?[0-9]+))?"
)
_DECIMAL = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_UNITS = {**_DECIMAL, **{f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", start=1)}}


class KubernetesSettings(ProcessSettings):
    """The settings of an agent that runs processes as pods.

    Attributes:
        kubeconfig: ``KUBECONFIG``, for an agent outside of the cluster; the service account of its pod without it.
        context: ``ELASTICDL_KUBERNETES_CONTEXT``, of the kubeconfig.
        namespace: ``ELASTICDL_KUBERNETES_NAMESPACE``, where pods are made; that of the access by default.
        image: ``ELASTICDL_KUBERNETES_IMAGE``, of all processes of jobs.
        image_pull_policy: ``ELASTICDL_KUBERNETES_IMAGE_PULL_POLICY``, Always, IfNotPresent or Never.
        claim: ``ELASTICDL_KUBERNETES_CLAIM``, the PersistentVolumeClaim that the data directory lies on, which
            the api and this agent mount as well.
        volume: ``ELASTICDL_KUBERNETES_VOLUME``, what all processes of jobs see besides:
            ``claim_name=data,mount_path=/mnt/data,read_only=true``; several with ``;`` between them.
        worker_cpu: ``ELASTICDL_KUBERNETES_WORKER_CPU``, what a slot requests.
        worker_memory: ``ELASTICDL_KUBERNETES_WORKER_MEMORY``, the same of memory.
        server_cpu: ``ELASTICDL_KUBERNETES_SERVER_CPU``, what a master or a parameter server requests.
        server_memory: ``ELASTICDL_KUBERNETES_SERVER_MEMORY``, the same of memory.
        node_selector: ``ELASTICDL_KUBERNETES_NODE_SELECTOR``, labels of the nodes that run jobs: ``pool=train``.
        priority_class: ``ELASTICDL_KUBERNETES_PRIORITY_CLASS``, of all pods of jobs; empty for the cluster's default.
        service: ``ELASTICDL_KUBERNETES_SERVICE``, name of the Service that leads to this agent.
        listen: ``ELASTICDL_KUBERNETES_LISTEN``, the address that it listens on.
        slots: ``ELASTICDL_SLOTS``, how many workers there may be; 0 to see it from the nodes and quotas.
        data_dir: ``ELASTICDL_DATA_DIR``, on the claim; the same path in all pods.
        cluster_secret: ``ELASTICDL_CLUSTER_SECRET``, derives the secrets that sign job tokens.
        node_token: ``ELASTICDL_NODE_TOKEN``, what callers of the agent must show.
        api_url: ``ELASTICDL_API_URL``, told to masters.
        ca_file: ``ELASTICDL_CA_FILE``, on the claim; certificates that the api is verified by, told to masters.
        redis_url: ``ELASTICDL_REDIS_URL``, told to masters.
        certificate_hours: ``ELASTICDL_CERTIFICATE_HOURS``, how long the certificates of processes are valid.
        keep_processes: ``ELASTICDL_KEEP_PROCESSES``, processes that have ended and are remembered.
    """

    model_config = SettingsConfigDict(env_prefix="ELASTICDL_KUBERNETES_")

    kubeconfig: str = Field(default="", validation_alias="KUBECONFIG")
    context: str = ""
    namespace: str = ""
    image: str
    image_pull_policy: str = "IfNotPresent"
    claim: str
    volume: str = ""
    worker_cpu: str = "1"
    worker_memory: str = "2Gi"
    server_cpu: str = "250m"
    server_memory: str = "512Mi"
    node_selector: str = ""
    priority_class: str = ""
    service: str = "elasticdl-agent"
    listen: str = "0.0.0.0:7010"
    slots: int = Field(default=0, ge=0, validation_alias=f"{_PLAIN}SLOTS")
    data_dir: Path = Field(validation_alias=f"{_PLAIN}DATA_DIR")
    cluster_secret: str = Field(validation_alias=f"{_PLAIN}CLUSTER_SECRET", min_length=16)
    node_token: str = Field(validation_alias=f"{_PLAIN}NODE_TOKEN", min_length=16)
    api_url: str = Field(validation_alias=f"{_PLAIN}API_URL")
    ca_file: str = Field(default="", validation_alias=f"{_PLAIN}CA_FILE")
    redis_url: str = Field(validation_alias=f"{_PLAIN}REDIS_URL")
    certificate_hours: float = Field(
        default=DEFAULT_HOURS, gt=0.001, le=24 * 365, validation_alias=f"{_PLAIN}CERTIFICATE_HOURS"
    )
    keep_processes: int = Field(default=KEEP_ENDED, ge=100, validation_alias=f"{_PLAIN}KEEP_PROCESSES")

    @field_validator("worker_cpu", "worker_memory", "server_cpu", "server_memory")
    @classmethod
    def _amount(cls, value: str) -> str:
        if quantity(value) <= 0:
            raise InvalidInputError(
                f"a request of {value} is none", fix="give an amount above 0, such as 500m or 2Gi"
            )
        return value

    @field_validator("image_pull_policy")
    @classmethod
    def _policy(cls, value: str) -> str:
        if value not in ("Always", "IfNotPresent", "Never"):
            raise InvalidInputError(f"{value!r} is no policy", fix="use Always, IfNotPresent or Never")
        return value

    @field_validator("volume")
    @classmethod
    def _volumes(cls, value: str) -> str:
        parse_volumes(value)
        return value

    @field_validator("node_selector")
    @classmethod
    def _labels(cls, value: str) -> str:
        parse_pairs(value, ",")
        return value


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
        raise InvalidInputError(f"{text!r} is no amount", fix="write it as Kubernetes does: 2, 500m, 2Gi")
    return match["number"] + (match["exponent"] or ""), match["unit"] or ""


def parse_pairs(text: str, separator: str) -> dict[str, str]:
    """Reads ``name=value,name=value``.

    Raises:
        InvalidInputError: it is not written so.
    """
    pairs = {}
    for part in filter(None, (part.strip() for part in text.split(separator))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise InvalidInputError(f"{part!r} is no name=value", fix=f"write name=value{separator}name=value")
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
        found.append(volume)
    return found
