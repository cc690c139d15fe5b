"""What the scheduler is told by its environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.scheduling import DEFAULT_POLICY, Quota, Resources, policy_by_name
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
    """

    database_url: str
    agent: str = ""
    node_token: str = ""
    policy: str = DEFAULT_POLICY
    interval_s: float = 5.0
    lease_s: float = 10.0
    quotas: Mapping[str, Quota] = field(default_factory=dict)

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
        )
        policy_by_name(settings.policy)
        for name, value in (("INTERVAL", settings.interval_s), ("LEASE", settings.lease_s)):
            if not 0.1 <= value <= 3600:
                raise InvalidInputError(
                    f"ELASTICDL_SCHEDULER_{name}_S={value:g} is out of range", fix="set it to 0.1 to 3600 seconds"
                )
        return settings


def parse_quotas(text: str) -> dict[str, Quota]:
    """Reads the quotas of teams.

    Raises:
        InvalidInputError: it is no JSON object of that form, or has unknown keys.
    """
    fix = f'set {_QUOTAS} to e.g. {{"ads": {{"weight": 2, "guaranteed": 4, "limit": 8}}}}, amounts in slots'
    try:
        teams = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"{_QUOTAS} is no JSON: {error}", fix=fix) from None
    if not isinstance(teams, dict):
        raise InvalidInputError(f"{_QUOTAS} is no JSON object", fix=fix)
    return {str(team): _quota(str(team), entry, fix) for team, entry in teams.items()}


def _quota(team: str, entry: object, fix: str) -> Quota:
    if not isinstance(entry, dict) or set(entry) - {"weight", "guaranteed", "limit"}:
        raise InvalidInputError(f"{_QUOTAS}: the entry of team {team!r} is not a quota", fix=fix)
    for key, value in entry.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise InvalidInputError(f"{_QUOTAS}: {key} of team {team!r} is not a positive number", fix=fix)
    amounts = {key: Resources(slots=float(entry[key])) for key in ("guaranteed", "limit") if key in entry}
    return Quota(float(entry.get("weight", 1.0)), amounts.get("guaranteed"), amounts.get("limit"))
