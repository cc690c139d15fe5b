"""The environment of a job's process, built from scratch: what is not named here does not get in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticdl_agent.directories import AgentDirectories
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.ports.launcher import ProcessSpec, Role
from elasticdl_runtime import failpoints, tokens
from elasticdl_runtime.hashing import HASHING
from elasticdl_runtime.launcher.addresses import RpcTransport, agent_address, process_address
from elasticdl_runtime.rpc import poller_variables
from elasticdl_runtime.waiting_threads import CHOICES, waiting_variables

_INHERITED = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "LANGUAGE",
        "TZ",
        "VIRTUAL_ENV",
        "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "XLA_FLAGS",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "NUMBA_CACHE_DIR",
        "OMP_NUM_THREADS",
        *CHOICES,
        "TF_CPP_MIN_LOG_LEVEL",
        "TF_ENABLE_ONEDNN_OPTS",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        failpoints.VARIABLE,
        "ELASTICDL_LOG_FORMAT",
        "ELASTICDL_LOG_LEVEL",
        "ELASTICDL_RECOVERY_S",
    }
)
STORE_VARIABLES = "ELASTICDL_STORE_VARIABLES"
"""Names, separated by commas, of variables that services and jobs get: credentials and addresses of stores."""
_INHERITED_PREFIXES = ("LC_", "PYTHON")
_OF_OTHER_PROGRAMS = frozenset(
    {
        *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONPLATLIBDIR", "PYTHONEXECUTABLE"),
        *("PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONINSPECT"),
    }
)
"""They would have services run with other packages than those that they were installed with, without docstrings and
checks, or end for a warning."""
MAX_VARIABLES = 1_000
MAX_NAME_BYTES = 255
MAX_VALUE_BYTES = 64 << 10
MAX_ENVIRONMENT_BYTES = 512 << 10
"""Of what a launch asks for. Linux takes 128 KiB a variable, and in all a quarter of the limit of the stack."""
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def base_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The harmless part of an environment: paths, locale, Python, accelerators. No proxies, credentials or packages,
    but for what ``ELASTICDL_STORE_VARIABLES`` names.

    Args:
        variables: the environment to take from; this process's own by default.
    """
    source = os.environ if variables is None else variables
    prefixes = _INHERITED_PREFIXES
    chosen = {name: value for name, value in source.items() if name in _INHERITED or name.startswith(prefixes)}
    chosen = {name: value for name, value in chosen.items() if name not in _OF_OTHER_PROGRAMS} | store_environment(
        source
    )
    chosen.setdefault("PATH", _DEFAULT_PATH)
    chosen.setdefault("LANG", "C.UTF-8")
    return chosen


def store_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that ``ELASTICDL_STORE_VARIABLES`` names, and it itself; nothing of the cluster's own.

    Args:
        variables: the environment to take from; this process's own by default.
    """
    source = os.environ if variables is None else variables
    named = {name.strip() for name in source.get(STORE_VARIABLES, "").split(",")} - _OF_OTHER_PROGRAMS
    named = {STORE_VARIABLES, *(name for name in named if not name.startswith("ELASTICDL_"))}
    return {name: value for name, value in source.items() if name in named}


def common_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment that all processes of all jobs on this machine have."""
    base = base_environment(variables)
    return {**base, **fixed_environment(base)}


def fixed_environment(chosen: Mapping[str, str]) -> dict[str, str]:
    """The environment that every launcher gives every process: gRPC's pollers, tracebacks, unbuffered output.

    And one order of sets: a model may be made by going through one.

    Args:
        chosen: variables that the process has; of what may be chosen, they stay.
    """
    own = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **HASHING}
    may_be_chosen = {**poller_variables(), **waiting_variables(chosen)}
    return own | {name: value for name, value in may_be_chosen.items() if name not in chosen}


def check_variables(variables: Mapping[str, str]) -> None:
    """Refuses what no process can be started with.

    Raises:
        InvalidInputError: says which variable, and what is wrong with it.
    """
    if len(variables) > MAX_VARIABLES:
        raise InvalidInputError(
            f"{len(variables)} environment variables are too many", fix=f"give at most {MAX_VARIABLES}"
        )
    total = 0
    for name, value in variables.items():
        shown = repr(name[:40])
        if not name or "=" in name or "\0" in name or not 0 < _size(name) <= MAX_NAME_BYTES:
            raise InvalidInputError(
                f"{shown} is not the name of an environment variable",
                fix=f"use 1 to {MAX_NAME_BYTES} bytes of text without `=` and NUL",
            )
        if "\0" in value or not 0 <= _size(value) <= MAX_VALUE_BYTES:
            raise InvalidInputError(
                f"no process can have the value of the environment variable {shown}",
                fix=f"give at most {MAX_VALUE_BYTES} bytes of text without NUL; larger things belong into files",
            )
        total += _size(name) + _size(value) + 2
    if total > MAX_ENVIRONMENT_BYTES:
        raise InvalidInputError(
            f"the environment variables take {total} bytes", fix=f"give at most {MAX_ENVIRONMENT_BYTES} in all"
        )


def _size(text: str) -> int:
    """Bytes of a text; -1 for one that has none (half of a surrogate pair)."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return -1


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of the cluster that masters, and only masters, are told.

    Attributes:
        cluster_secret: the secret that the jobs' secrets are derived from; never handed on itself.
        api_url: base URL of the api.
        redis_url: URL of the queue's Redis.
        ca_file: certificates that the api is verified by; empty for those that the machine trusts.
        transport: what the agent and the processes of jobs speak over.
    """

    cluster_secret: str
    api_url: str
    redis_url: str
    ca_file: str = ""
    transport: RpcTransport = RpcTransport.UNIX


def process_environment(
    spec: ProcessSpec, directories: AgentDirectories, endpoints: Endpoints, variables: Mapping[str, str] | None = None
) -> dict[str, str]:
    """All variables of a job's process.

    Order of precedence, lowest first: the harmless part of the agent's own, what the launch asks for, what the
    launcher states. A master gets its endpoints, its job's secret and its token; nobody else gets any of these here.
    """
    process = spec.id
    agent = agent_address(directories.run, endpoints.transport)
    environment = common_environment(variables)
    environment["TMPDIR"] = str(directories.job_run_dir(process.job_id) / "tmp")
    environment.update(stated_environment(spec, directories.job_dir(process.job_id), agent, endpoints))
    environment["ELASTICDL_LISTEN"] = process_address(agent, process.job_id, process.role, process.index)
    return environment


def stated_environment(spec: ProcessSpec, job_dir: Path, agent: str, endpoints: Endpoints) -> dict[str, str]:
    """The environment that a process is told by every launcher: its launch's, its identity, and a master's endpoints.

    Args:
        spec: the process.
        job_dir: its job's folder, as it sees it.
        agent: address of the agent.
        endpoints: what masters are told.
    """
    process = spec.id
    # Failpoints are the cluster's to set: nobody who asks for a launch can.
    environment = {name: value for name, value in spec.environment.items() if name != failpoints.VARIABLE}
    environment.update(
        {
            "ELASTICDL_JOB_ID": process.job_id,
            "ELASTICDL_ROLE": str(process.role),
            "ELASTICDL_INDEX": str(process.index),
            "ELASTICDL_INCARNATION": str(process.incarnation),
            "ELASTICDL_JOB_DIR": str(job_dir),
        }
    )
    if process.role is Role.MASTER:
        secret = tokens.derive_job_secret(endpoints.cluster_secret, process.job_id)
        environment.update(
            {
                "ELASTICDL_API_URL": endpoints.api_url,
                "ELASTICDL_CA_FILE": endpoints.ca_file,
                "ELASTICDL_REDIS_URL": endpoints.redis_url,
                "ELASTICDL_AGENT": agent,
                "ELASTICDL_JOB_SECRET": secret,
                "ELASTICDL_JOB_TOKEN": tokens.issue(
                    secret, process.job_id, process.role, process.index, process.incarnation
                ),
            }
        )
    return environment
