"""The scheduler's settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.scheduling import DEFAULT_POLICY, Policy, Quota, policy_by_name
from elasticdl_core.scheduling.policies import GoodputPolicy
from elasticdl_core.scheduling.policies.candidate import GoodputSettings
from elasticdl_runtime.scheduling import quotas_from_json
from elasticdl_runtime.settings import ProcessSettings

_QUOTAS = "ELASTICDL_SCHEDULER_QUOTAS"
_GOODPUT = "ELASTICDL_SCHEDULER_GOODPUT"


class SchedulerSettings(ProcessSettings):
    """The scheduler's settings.

    Attributes:
        database_url: ``ELASTICDL_DATABASE_URL``, of Postgres.
        agent: ``ELASTICDL_AGENT``, address of the launcher's agent.
        node_token: ``ELASTICDL_NODE_TOKEN``, what the agent wants to see.
        policy: ``ELASTICDL_SCHEDULER_POLICY``, by name.
        interval_s: ``ELASTICDL_SCHEDULER_INTERVAL_S``, seconds between two full passes.
        lease_s: ``ELASTICDL_SCHEDULER_LEASE_S``, how long the leader's lease lasts unless it is renewed.
        quotas: ``ELASTICDL_SCHEDULER_QUOTAS``, JSON by team (namespace), in slots:
            ``{"ads": {"weight": 2, "guaranteed": 4, "limit": 8}}``.
        goodput: ``ELASTICDL_SCHEDULER_GOODPUT``, JSON with numbers of the goodput policy that differ from their
            defaults: ``{"cooldown_s": 10, "horizon_s": 120}``; see ``GoodputSettings`` for all.
        keep_days: ``ELASTICDL_SCHEDULER_KEEP_DAYS``, age at which a decision is removed from the log.
        keep_decisions: ``ELASTICDL_SCHEDULER_KEEP_DECISIONS``, most decisions in the log.
    """

    model_config = SettingsConfigDict(env_prefix="ELASTICDL_SCHEDULER_")

    database_url: str = Field(validation_alias="ELASTICDL_DATABASE_URL")
    agent: str = Field(validation_alias="ELASTICDL_AGENT")
    node_token: str = Field(validation_alias="ELASTICDL_NODE_TOKEN")
    policy: str = DEFAULT_POLICY
    interval_s: float = 5.0
    lease_s: float = 10.0
    quotas: Annotated[Mapping[str, Quota], NoDecode] = Field(default_factory=dict)
    goodput: Annotated[GoodputSettings, NoDecode] = Field(default_factory=GoodputSettings)
    keep_days: float = 14.0
    keep_decisions: int = 10_000

    @field_validator("quotas", mode="before")
    @classmethod
    def _read_quotas(cls, value: Any) -> Any:
        return parse_quotas(value) if isinstance(value, str) else value

    @field_validator("goodput", mode="before")
    @classmethod
    def _read_goodput(cls, value: Any) -> Any:
        return parse_goodput(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        policy_by_name(self.policy)
        for name, value in (("INTERVAL", self.interval_s), ("LEASE", self.lease_s)):
            if not 0.1 <= value <= 3600:
                raise InvalidInputError(
                    f"ELASTICDL_SCHEDULER_{name}_S={value:g} is out of range", fix="set it to 0.1 to 3600 seconds"
                )
        if not 0 < self.keep_days <= 36_500:
            raise InvalidInputError(
                f"ELASTICDL_SCHEDULER_KEEP_DAYS={self.keep_days:g} is out of range",
                fix="set it to a number of days above 0",
            )
        if not 1 <= self.keep_decisions <= 10_000_000:
            raise InvalidInputError(
                f"ELASTICDL_SCHEDULER_KEEP_DECISIONS={self.keep_decisions} is out of range",
                fix="set it to 1 to 10000000 decisions",
            )
        return self

    def make_policy(self) -> Policy:
        """The policy of that name, with its numbers; one that is quick where little changes between two passes."""
        if self.policy == GoodputPolicy.name:
            return GoodputPolicy(self.goodput).incremental()
        return policy_by_name(self.policy)


def parse_goodput(text: str) -> GoodputSettings:
    """Reads the numbers of the goodput policy.

    Raises:
        InvalidInputError: it is no JSON object of numbers, or has unknown names.
    """
    known = {item.name: item.type for item in dataclasses.fields(GoodputSettings)}
    fix = f"set {_GOODPUT} to a JSON object with numbers for any of {', '.join(known)}"
    try:
        numbers = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"{_GOODPUT} is no JSON: {error}", fix=fix) from None
    if not isinstance(numbers, dict):
        raise InvalidInputError(f"{_GOODPUT} is no JSON object", fix=fix)
    for name, value in numbers.items():
        whole = known.get(name) == "int"
        if name not in known or isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise InvalidInputError(f"{_GOODPUT}: {name}={value!r} is no number of the policy", fix=fix)
        if value < 0:
            raise InvalidInputError(f"{_GOODPUT}: {name} is negative", fix=fix)
    return GoodputSettings(**numbers)


def parse_quotas(text: str) -> dict[str, Quota]:
    """Reads the quotas of teams.

    Raises:
        InvalidInputError: it is no JSON object of that form, or has unknown keys.
    """
    try:
        teams = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInputError(
            f"{_QUOTAS} is no JSON: {error}", fix=f'set {_QUOTAS} to e.g. {{"ads": {{"limit": 8}}}}, amounts in slots'
        ) from None
    return quotas_from_json(teams, _QUOTAS)
