"""The one table of what a token must be allowed for each public route. A route that is not in it is not served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from starlette.routing import BaseRoute, Route, compile_path

from elasticdl_core.access import TokenScope

_VERSION = "/v1"


@dataclass(frozen=True, slots=True)
class RouteRule:
    """The rights that a route needs.

    Attributes:
        scope: the least scope that may use it.
        cluster: whether it is for users of the cluster only, and for nobody of one namespace.
    """

    scope: TokenScope
    cluster: bool = False


_READ = RouteRule(TokenScope.READ)
_SUBMIT = RouteRule(TokenScope.SUBMIT)
_ADMIN = RouteRule(TokenScope.ADMIN)
_CLUSTER_READ = RouteRule(TokenScope.READ, cluster=True)
_CLUSTER_ADMIN = RouteRule(TokenScope.ADMIN, cluster=True)

RULES: Mapping[str, RouteRule] = {
    "GET /jobs": _READ,
    "POST /jobs": _SUBMIT,
    "GET /jobs/{job_id}": _READ,
    "PATCH /jobs/{job_id}": _SUBMIT,
    "DELETE /jobs/{job_id}": _SUBMIT,
    "POST /jobs/{job_id}/cancel": _SUBMIT,
    "POST /jobs/{job_id}/suspend": _SUBMIT,
    "POST /jobs/{job_id}/resume": _SUBMIT,
    "GET /jobs/{job_id}/events": _READ,
    "GET /jobs/{job_id}/logs": _READ,
    "GET /jobs/{job_id}/audit": _READ,
    "GET /jobs/{job_id}/logs/files": _READ,
    "POST /jobs/{job_id}/trace": _READ,  # it looks, and changes nothing
    "GET /jobs/{job_id}/metrics": _READ,
    "GET /jobs/{job_id}/processes": _READ,
    "GET /jobs/{job_id}/ledger": _READ,
    "GET /jobs/{job_id}/series": _READ,
    "GET /jobs/{job_id}/stacks": _READ,
    "GET /jobs/{job_id}/artifacts": _READ,
    "GET /jobs/{job_id}/checkpoints": _READ,
    "GET /jobs/{job_id}/evaluations": _READ,
    "GET /jobs/{job_id}/artifacts/{name:path}": _READ,
    "GET /jobs/{job_id}/explain": _READ,
    "POST /sql": _SUBMIT,
    "GET /sql/{job_id}": _READ,
    "POST /sql/{job_id}/cancel": _SUBMIT,
    "GET /bundles/{digest}": _READ,
    "PUT /bundles/{digest}": _SUBMIT,
    "GET /scheduler/plan": _READ,
    "POST /scheduler/what-if": _READ,  # it asks, and changes nothing
    "GET /scheduler/decisions": _READ,
    "GET /tokens": _ADMIN,
    "POST /tokens": _ADMIN,
    "DELETE /tokens/{token_id}": _ADMIN,
    "GET /namespaces": _READ,
    "GET /namespaces/{name}": _READ,
    "PUT /namespaces/{name}": _CLUSTER_ADMIN,
    "DELETE /namespaces/{name}": _CLUSTER_ADMIN,
    "GET /audit": _ADMIN,
    "GET /whoami": _READ,
    "GET /session": _READ,
    "POST /session": _READ,
    "DELETE /session": _READ,
    "GET /version": _READ,
    "GET /events": _READ,
    "GET /cluster": _READ,
    "GET /cluster/series": _READ,
    "GET /metrics": _READ,
    "GET /cluster/reservations": _CLUSTER_READ,
    "GET /cluster/reservations/{name}": _CLUSTER_READ,
    "PUT /cluster/reservations/{name}": _CLUSTER_ADMIN,
    "DELETE /cluster/reservations/{name}": _CLUSTER_ADMIN,
}
"""By method and path; HEAD needs what GET needs, and a path below /v1 what the one without it needs."""

_MATCHERS = [
    (method, compile_path(path)[0], rule)
    for (method, path), rule in ((key.split(" ", 1), rule) for key, rule in RULES.items())
]


def rules_of(method: str, path: str) -> list[RouteRule]:
    """The rules for a request; nothing where there is no such route."""
    asked = "GET" if method == "HEAD" else method
    bare = path.removeprefix(_VERSION) if path.startswith(f"{_VERSION}/") else path
    return [rule for known, pattern, rule in _MATCHERS if known == asked and pattern.match(bare)]


def check_rules(routes: Iterable[BaseRoute]) -> None:
    """Refuses public routes of which the table does not say who may use them.

    Raises:
        LookupError: one is not in the table.
    """
    for route in routes:
        if isinstance(route, Route):
            for method in route.methods or ():
                if not rules_of(method, route.path):
                    raise LookupError(f"{method} {route.path} is not in the table of {__name__}")
