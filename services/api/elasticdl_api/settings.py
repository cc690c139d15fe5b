"""ApiSettings of the api, from its environment."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.settings import Environment

MIN_TOKEN_LENGTH = 16


@dataclass(frozen=True)
class ApiSettings:
    """What the api needs to know.

    Attributes:
        database_url: Postgres.
        cluster_secret: derives the secrets that sign job tokens.
        admin_token: the token that may do everything.
        data_dir: bundles and files of jobs.
        agent_address: the agent that launches masters; empty for none (nothing is launched then).
        node_token: proves the api to the agent.
        host: address to listen on.
        port: port to listen on.
    """

    database_url: str
    cluster_secret: str
    admin_token: str
    data_dir: Path
    agent_address: str = ""
    node_token: str = ""
    host: str = "127.0.0.1"
    port: int = 8850

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] | None = None) -> ApiSettings:
        """Reads and checks the settings.

        Raises:
            InvalidInputError: one is missing or unusable. Without an admin token the api does not start at all.
        """
        environment = Environment(variables)
        data_dir = Path(environment.text("ELASTICDL_DATA_DIR"))
        return cls(
            database_url=environment.text("ELASTICDL_DATABASE_URL"),
            cluster_secret=_secret(environment.text("ELASTICDL_CLUSTER_SECRET")),
            admin_token=_admin_token(Path(environment.text("ELASTICDL_ADMIN_TOKEN_FILE", str(data_dir / "token")))),
            data_dir=data_dir,
            agent_address=environment.text("ELASTICDL_AGENT", ""),
            node_token=environment.text("ELASTICDL_NODE_TOKEN", ""),
            host=environment.text("ELASTICDL_API_HOST", "127.0.0.1"),
            port=_port(environment.integer("ELASTICDL_API_PORT", 8850)),
        )

    @property
    def bundles_dir(self) -> Path:
        """Where bundles lie, one zip each, named by digest."""
        return self.data_dir / "bundles"

    def job_dir(self, job_id: str) -> Path:
        """Where the files of a job lie."""
        return self.data_dir / "jobs" / job_id

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the api."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _secret(text: str) -> str:
    if len(text) < MIN_TOKEN_LENGTH:
        raise InvalidInputError(
            "ELASTICDL_CLUSTER_SECRET is too short", fix=f"use {MIN_TOKEN_LENGTH} or more random characters"
        )
    return text


def _admin_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"the admin token cannot be read from {path}: {error}",
            fix="write a random token to that file, or point ELASTICDL_ADMIN_TOKEN_FILE at it",
        ) from None
    if len(token) < MIN_TOKEN_LENGTH:
        raise InvalidInputError(
            f"the admin token in {path} is too short: the api does not listen without a real one",
            fix=f"write {MIN_TOKEN_LENGTH} or more random characters to it",
        )
    return token


def _port(port: int) -> int:
    if not 0 <= port < 65536:
        raise InvalidInputError(f"ELASTICDL_API_PORT={port} is no port", fix="give 0 to 65535")
    return port
