"""What the scheduler is told by its environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.scheduling import DEFAULT_POLICY, Quota, policy_by_name
from elasticdl_runtime.scheduling import quotas_from_json
from elasticdl_runtime.settings import Environment

_QUOTAS = "ELASTICDL_SCHEDULER_QUOTAS"


@dataclass(frozen=True)
class SchedulerSettings:
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
        keep_days: ``ELASTICDL_SCHEDULER_KEEP_DAYS``, age at which a decision is removed from the log.
        keep_decisions: ``ELASTICDL_SCHEDULER_KEEP_DECISIONS``, most decisions in the log.
    """

    database_url: str
    agent: str = ""
    node_token: str = ""
    policy: str = DEFAULT_POLICY
    interval_s: float = 5.0
    lease_s: float = 10.0
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    keep_days: float = 14.0
    keep_decisions: int = 10_000

    @classmethod
    def from_environment(cls, environment: Environment) -> SchedulerSettings:
        """Reads and checks the settings.

        Raises:
            InvalidInputError: a setting is missing or makes no sense; the error names it.
        """
        settings = cls(
            database_url=environment.text("ELASTICDL_DATABASE_URL"),
            agent=environment.text("ELASTICDL_AGENT"),
            node_token=environment.text("ELASTICDL_NODE_TOKEN"),
            policy=environment.text("ELASTICDL_SCHEDULER_POLICY", DEFAULT_POLICY),
            interval_s=environment.seconds("ELASTICDL_SCHEDULER_INTERVAL_S", 5.0),
            lease_s=environment.seconds("ELASTICDL_SCHEDULER_LEASE_S", 10.0),
            quotas=parse_quotas(environment.text(_QUOTAS, "{}")),
            keep_days=environment.seconds("ELASTICDL_SCHEDULER_KEEP_DAYS", 14.0),
            keep_decisions=environment.integer("ELASTICDL_SCHEDULER_KEEP_DECISIONS", 10_000),
        )
        policy_by_name(settings.policy)
        for name, value in (("INTERVAL", settings.interval_s), ("LEASE", settings.lease_s)):
            if not 0.1 <= value <= 3600:
                raise InvalidInputError(
                    f"ELASTICDL_SCHEDULER_{name}_S={value:g} is out of range", fix="set it to 0.1 to 3600 seconds"
                )
        if not 0 < settings.keep_days <= 36_500:
            raise InvalidInputError(
                f"ELASTICDL_SCHEDULER_KEEP_DAYS={settings.keep_days:g} is out of range",
                fix="set it to a number of days above 0",
            )
        if not 1 <= settings.keep_decisions <= 10_000_000:
            raise InvalidInputError(
                f"ELASTICDL_SCHEDULER_KEEP_DECISIONS={settings.keep_decisions} is out of range",
                fix="set it to 1 to 10000000 decisions",
            )
        return settings


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
