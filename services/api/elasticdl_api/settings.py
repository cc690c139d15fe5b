"""ApiSettings of the api, from its environment."""

from __future__ import annotations

import ipaddress
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Self

import psutil
from pydantic import Field, model_validator

from elasticdl_api.web.oidc import Provider, is_safe_address
from elasticdl_core.access import ProviderGrant
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.path_policy import check_root, split_places
from elasticdl_runtime.hosts import is_loopback
from elasticdl_runtime.settings import ProcessSettings
from elasticdl_runtime.tls import check_certificate

MIN_TOKEN_LENGTH = 16
PS_BYTES = 256 << 20
"""What a parameter server with little in it takes."""
LEAST_PS = 8
"""Parameter servers that any machine's jobs may have."""


class ApiSettings(ProcessSettings):
    """Settings of the api. Without an admin token it does not start at all.

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
        access_log: ``ELASTICDL_ACCESS_LOG``, file of the log of requests; by default ``logs/access.log`` in the data
            directory, ``off`` for none.
        keep_jobs_days: ``ELASTICDL_KEEP_JOBS_DAYS``, age after its end at which a job goes with its files; 0: never.
        keep_events_days: ``ELASTICDL_KEEP_EVENTS_DAYS``, age at which events of jobs that are over go; 0 keeps them.
        keep_logs_days: ``ELASTICDL_KEEP_LOGS_DAYS``, age after a job's end at which its logs go; 0 keeps them.
        keep_bundles_days: ``ELASTICDL_KEEP_BUNDLES_DAYS``, age at which bundles go that nobody used; 0 keeps them.
        keep_audit_days: ``ELASTICDL_KEEP_AUDIT_DAYS``, age at which entries of the log of changes go; 0 keeps them.
        keep_tokens_days: ``ELASTICDL_KEEP_TOKENS_DAYS``, days after their end for which tokens are listed; 0: ever.
        keep_losses: ``ELASTICDL_KEEP_LOSSES``, losses of a job; of more every second one goes; 0 keeps them.
        namespace_disk_mib: ``ELASTICDL_NAMESPACE_DISK_MIB``, MiB that a namespace's jobs and bundles may fill before
            it may add more; 0 for no limit. ``disk_mib`` of a namespace's limits goes before it.
        max_ps: ``ELASTICDL_MAX_PS``, most parameter servers of a job, where its namespace has no limit of its own; 0
            for what half of this machine's memory holds.
        host: ``ELASTICDL_API_HOST``, address to listen on.
        port: ``ELASTICDL_API_PORT``, port to listen on.
        max_streams: ``ELASTICDL_API_MAX_STREAMS``, live streams that one process serves.
        max_streams_per_token: ``ELASTICDL_API_MAX_STREAMS_PER_TOKEN``, those of one token of a namespace; the limits
            of the namespace go before it. Administrators have no limit of their own.
        requests_per_s: ``ELASTICDL_API_REQUESTS_PER_S``, requests a second of one token of a namespace; the same.
        requests_at_once: ``ELASTICDL_API_REQUESTS_AT_ONCE``, those in a burst.
        failed_tokens_per_s: ``ELASTICDL_API_FAILED_TOKENS_PER_S``, requests a second with a bad token that one
            address may send.
        failed_tokens_at_once: ``ELASTICDL_API_FAILED_TOKENS_AT_ONCE``, those in a burst.
        max_strangers: ``ELASTICDL_API_MAX_STRANGERS``, connections of one address that have not shown a valid token.
        head_seconds: ``ELASTICDL_API_HEAD_SECONDS``, seconds in which the head of a request must be there.
        max_followed_logs: ``ELASTICDL_API_MAX_FOLLOWED_LOGS``, logs that one process follows at the same time.
        allowed_hosts: ``ELASTICDL_API_ALLOWED_HOSTS``, names that the api is reached by besides ``localhost``,
            separated by commas; requests to other names are refused, those to addresses are not.
        trusted_proxies: ``ELASTICDL_API_TRUSTED_PROXIES``, addresses and networks of proxies, separated by commas,
            that are believed whom they ask for, and over what (``X-Forwarded-For``, ``X-Forwarded-Proto``).
        tls_cert: ``ELASTICDL_API_TLS_CERT``, the certificate with its chain, as PEM; with it the api speaks TLS only.
        tls_key: ``ELASTICDL_API_TLS_KEY``, its key, as PEM.
        plain_http: ``ELASTICDL_API_PLAIN_HTTP``, whether the api may listen beyond loopback without TLS: in a private
            network, or behind a proxy that speaks TLS.
        oidc_issuer: ``ELASTICDL_OIDC_ISSUER``, address of an identity provider whose bearer tokens are taken too.
        oidc_audience: ``ELASTICDL_OIDC_AUDIENCE``, whom its tokens must be for.
        oidc_client_id: ``ELASTICDL_OIDC_CLIENT_ID``, what the dashboard is called there; the audience by default, as
            the id tokens that it gets are for itself.
        oidc_user_claim: ``ELASTICDL_OIDC_USER_CLAIM``, the claim that names the user.
        oidc_grants_claim: ``ELASTICDL_OIDC_GRANTS_CLAIM``, the claim that lists what the user belongs to.
        oidc_grants: ``ELASTICDL_OIDC_GRANTS``, what those who belong there may do, as JSON:
            ``{"ml-ads": "team-a:submit", "platform": "*:admin"}``.
        session_hours: ``ELASTICDL_API_SESSION_HOURS``, how long a browser's session lives.
    """

    database_url: str
    cluster_secret: str
    data_dir: Path
    admin_token_file: Path | None = None
    agent_address: str = Field(default="", validation_alias="ELASTICDL_AGENT")
    node_token: str = ""
    data_roots: str = ""
    access_log: str = ""
    keep_jobs_days: float = Field(default=0.0, ge=0, le=36_500)
    keep_events_days: float = Field(default=90.0, ge=0, le=36_500)
    keep_logs_days: float = Field(default=30.0, ge=0, le=36_500)
    keep_bundles_days: float = Field(default=30.0, ge=0, le=36_500)
    keep_audit_days: float = Field(default=400.0, ge=0, le=36_500)
    keep_tokens_days: float = Field(default=90.0, ge=0, le=36_500)
    keep_losses: int = Field(default=20_000, ge=0)
    namespace_disk_mib: int = Field(default=0, ge=0, le=1 << 40)
    max_ps: int = Field(default=0, ge=0, le=1000)
    host: str = Field(default="127.0.0.1", validation_alias="ELASTICDL_API_HOST")
    port: int = Field(default=8850, validation_alias="ELASTICDL_API_PORT")
    max_streams: int = Field(default=12_000, ge=1, validation_alias="ELASTICDL_API_MAX_STREAMS")
    max_streams_per_token: int = Field(default=100, ge=1, validation_alias="ELASTICDL_API_MAX_STREAMS_PER_TOKEN")
    requests_per_s: float = Field(default=200, gt=0, validation_alias="ELASTICDL_API_REQUESTS_PER_S")
    requests_at_once: int = Field(default=1000, ge=1, validation_alias="ELASTICDL_API_REQUESTS_AT_ONCE")
    failed_tokens_per_s: float = Field(default=1, gt=0, validation_alias="ELASTICDL_API_FAILED_TOKENS_PER_S")
    failed_tokens_at_once: int = Field(default=100, ge=1, validation_alias="ELASTICDL_API_FAILED_TOKENS_AT_ONCE")
    max_strangers: int = Field(default=500, ge=1, validation_alias="ELASTICDL_API_MAX_STRANGERS")
    head_seconds: float = Field(default=15, gt=0, validation_alias="ELASTICDL_API_HEAD_SECONDS")
    max_followed_logs: int = Field(default=500, ge=1, validation_alias="ELASTICDL_API_MAX_FOLLOWED_LOGS")
    allowed_hosts: str = Field(default="", validation_alias="ELASTICDL_API_ALLOWED_HOSTS")
    tls_cert: Path | None = Field(default=None, validation_alias="ELASTICDL_API_TLS_CERT")
    trusted_proxies: str = Field(default="", validation_alias="ELASTICDL_API_TRUSTED_PROXIES")
    tls_key: Path | None = Field(default=None, validation_alias="ELASTICDL_API_TLS_KEY")
    plain_http: bool = Field(default=False, validation_alias="ELASTICDL_API_PLAIN_HTTP")
    oidc_issuer: str = ""
    oidc_audience: str = ""
    oidc_client_id: str = ""
    oidc_user_claim: str = "sub"
    oidc_grants_claim: str = "groups"
    oidc_grants: str = ""
    session_hours: int = Field(default=12, ge=1, le=24 * 30, validation_alias="ELASTICDL_API_SESSION_HOURS")

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_secret(self.cluster_secret)
        _check_port(self.port)
        _check_hosts(self.hosts)
        _check_proxies(self.proxies)
        self._check_tls()
        assert self.provider or not self.oidc_issuer
        for root in self.shared_roots:
            check_root(root)
        assert self.admin_token
        return self

    def _check_tls(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidInputError(
                "ELASTICDL_API_TLS_CERT and ELASTICDL_API_TLS_KEY go together", fix="give both, or none"
            )
        if self.tls_cert is not None and self.tls_key is not None:
            check_certificate(self.tls_cert, self.tls_key)
        elif not self.loopback and not self.plain_http:
            raise InvalidInputError(
                f"refusing to listen on {self.host} without TLS: tokens would travel in the open",
                fix="set ELASTICDL_API_TLS_CERT and ELASTICDL_API_TLS_KEY; or, in a private network or behind a "
                "proxy that speaks TLS, ELASTICDL_API_PLAIN_HTTP=true",
            )

    @cached_property
    def provider(self) -> Provider | None:
        """The identity provider, if there is one.

        Raises:
            InvalidInputError: its settings cannot work.
        """
        if not self.oidc_issuer:
            return None
        if not is_safe_address(self.oidc_issuer):
            raise InvalidInputError(
                f"ELASTICDL_OIDC_ISSUER={self.oidc_issuer!r} is no https address",
                fix="give the issuer as its tokens name it",
            )
        if not self.oidc_audience:
            raise InvalidInputError(
                "ELASTICDL_OIDC_AUDIENCE is missing: tokens for anybody else would be taken",
                fix="give the audience that the provider puts into tokens for this cluster",
            )
        grants = _grants(self.oidc_grants)
        return Provider(
            issuer=self.oidc_issuer,
            audience=self.oidc_audience,
            user_claim=self.oidc_user_claim,
            grants_claim=self.oidc_grants_claim,
            grants=grants,
            client_id=self.oidc_client_id or self.oidc_audience,
        )

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

    @cached_property
    def most_ps(self) -> int:
        """Most parameter servers of one job: they take no slots, so nothing else bounds them."""
        fitting = psutil.virtual_memory().total // 2 // PS_BYTES
        return self.max_ps or min(max(fitting, LEAST_PS), 1000)

    @property
    def keeps_days(self) -> dict[str, float]:
        """The number of days that things are kept, by their kind; 0 is for ever."""
        names = ("jobs", "events", "logs", "bundles", "audit", "tokens")
        return {name: getattr(self, f"keep_{name}_days") for name in names}

    @property
    def hosts(self) -> frozenset[str]:
        """The names that the api is reached by besides those of loopback."""
        return frozenset(name.strip().lower() for name in self.allowed_hosts.split(",") if name.strip())

    @property
    def proxies(self) -> list[str]:
        """The proxies that are believed, one by one."""
        return [place.strip() for place in self.trusted_proxies.split(",")] if self.trusted_proxies.strip() else []

    @property
    def access_log_file(self) -> Path | None:
        """The log of requests; None for none."""
        if self.access_log == "off":
            return None
        return Path(self.access_log) if self.access_log else self.data_dir / "logs" / "access.log"

    @property
    def bundles_dir(self) -> Path:
        """The folder of bundles, one zip each, named by digest."""
        return self.data_dir / "bundles"

    def job_dir(self, job_id: str) -> Path:
        """The folder of a job's files."""
        return self.data_dir / "jobs" / job_id

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the api."""
        return is_loopback(self.host)


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


def _grants(text: str) -> dict[str, ProviderGrant]:
    try:
        listed = json.loads(text)
        found = {str(name): ProviderGrant.parse(grant) for name, grant in listed.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise InvalidInputError(
            f"ELASTICDL_OIDC_GRANTS cannot be read: {error}",
            fix='write JSON such as {"ml-ads": "team-a:submit", "platform": "*:admin"}',
        ) from None
    return found


def _check_hosts(names: frozenset[str]) -> None:
    for name in sorted(names):
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", name):
            raise InvalidInputError(
                f"ELASTICDL_API_ALLOWED_HOSTS has {name!r}, which is no name of a host",
                fix="give names alone, without scheme and port, separated by commas: elasticdl.example.org,api",
            )


def _check_proxies(places: list[str]) -> None:
    for place in places:
        try:
            everybody = ipaddress.ip_network(place).prefixlen == 0
        except ValueError:
            everybody = True
        if everybody:
            raise InvalidInputError(
                f"ELASTICDL_API_TRUSTED_PROXIES has {place!r}, which is no proxy's address",
                fix="give addresses and networks, separated by commas, and none that is everybody: "
                "127.0.0.1,10.8.0.0/24",
            )


class DatabaseSettings(ProcessSettings):
    """Settings of the commands that only need the database.

    Attributes:
        database_url: ``ELASTICDL_DATABASE_URL``, of Postgres.
    """

    database_url: str
