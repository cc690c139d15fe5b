"""ApiSettings of the api, from its environment."""

from __future__ import annotations

import ipaddress
from functools import cached_property
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.places import check_root, split_places
from elasticdl_runtime.settings import ProcessSettings

MIN_TOKEN_LENGTH = 16


class ApiSettings(ProcessSettings):
    """What the api needs to know. Without an admin token it does not start at all.

    Attributes:
        database_url: ``ELASTICDL_DATABASE_URL``, of Postgres.
        cluster_secret: ``ELASTICDL_CLUSTER_SECRET``, derives the secrets that sign job tokens.
        data_dir: ``ELASTICDL_DATA_DIR``, bundles and files of jobs.
        admin_token_file: ``ELASTICDL_ADMIN_TOKEN_FILE``, holds the admin token; ``token`` in the data directory by
            default.
        agent_address: ``ELASTICDL_AGENT``, the agent that launches masters; empty for none: nothing is launched
            then.
        node_token: ``ELASTICDL_NODE_TOKEN``, proves the api to the agent.
        data_roots: ``ELASTICDL_DATA_ROOTS``, folders and URL prefixes that the jobs of all namespaces may read,
            separated by commas.
        host: ``ELASTICDL_API_HOST``, address to listen on.
        port: ``ELASTICDL_API_PORT``, port to listen on.
    """

    database_url: str
    cluster_secret: str
    data_dir: Path
    admin_token_file: Path | None = None
    agent_address: str = Field(default="", validation_alias="ELASTICDL_AGENT")
    node_token: str = ""
    data_roots: str = ""
    host: str = Field(default="127.0.0.1", validation_alias="ELASTICDL_API_HOST")
    port: int = Field(default=8850, validation_alias="ELASTICDL_API_PORT")

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_secret(self.cluster_secret)
        _check_port(self.port)
        for root in self.shared_roots:
            check_root(root)
        assert self.admin_token
        return self

    @cached_property
    def admin_token(self) -> str:
        """The token that may do everything.

        Raises:
            InvalidInputError: there is none, or it is too short.
        """
        return _read_token(self.admin_token_file or self.data_dir / "token")

    @property
    def shared_roots(self) -> tuple[str, ...]:
        """The data roots, one by one."""
        return tuple(split_places(self.data_roots))

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


def _check_secret(text: str) -> None:
    if len(text) < MIN_TOKEN_LENGTH:
        raise InvalidInputError(
            "ELASTICDL_CLUSTER_SECRET is too short", fix=f"use {MIN_TOKEN_LENGTH} or more random characters"
        )


def _read_token(path: Path) -> str:
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


def _check_port(port: int) -> None:
    if not 0 <= port < 65536:
        raise InvalidInputError(f"ELASTICDL_API_PORT={port} is no port", fix="give 0 to 65535")


class DatabaseSettings(ProcessSettings):
    """What the commands that only need the database are told.

    Attributes:
        database_url: ``ELASTICDL_DATABASE_URL``, of Postgres.
    """

    database_url: str
