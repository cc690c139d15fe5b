"""The settings of an agent whose launcher is Kubernetes."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from elasticdl_agent.processes.credentials import DEFAULT_HOURS
from elasticdl_agent.table import KEEP_ENDED
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.pods import PodRules, parse_pairs, parse_volumes, quantity
from elasticdl_runtime.settings import ProcessSettings

_PLAIN = "ELASTICDL_"


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
        job_images: ``ELASTICDL_KUBERNETES_JOB_IMAGES``, patterns of images that jobs may name for their workers, with
            commas between them: ``registry.example/team/*``; none by default.
        job_claims: ``ELASTICDL_KUBERNETES_JOB_CLAIMS``, the same of PersistentVolumeClaims that jobs may mount.
        job_most_cpu: ``ELASTICDL_KUBERNETES_JOB_MOST_CPU``, cores that a job may ask for in one pod; empty for any.
        job_most_memory: ``ELASTICDL_KUBERNETES_JOB_MOST_MEMORY``, the same of memory.
        patience_s: ``ELASTICDL_KUBERNETES_PATIENCE_S``, seconds that a pod may wait for what may never come, such as
            an image that cannot be pulled, before it counts as one that cannot start.
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
    job_images: str = ""
    job_claims: str = ""
    job_most_cpu: str = ""
    job_most_memory: str = ""
    patience_s: float = Field(default=300.0, gt=0)
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

    @field_validator("job_most_cpu", "job_most_memory")
    @classmethod
    def _most(cls, value: str) -> str:
        return cls._amount(value) if value else value

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

    @property
    def rules(self) -> PodRules:
        """The rules for what jobs ask of their pods."""
        return PodRules(
            _patterns(self.job_images),
            _patterns(self.job_claims),
            self.claim,
            str(self.data_dir),
            self.job_most_cpu,
            self.job_most_memory,
            parse_pairs(self.node_selector, ","),
        )


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))
