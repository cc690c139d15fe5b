"""Between the client's requests and answers and those of httpx."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from datetime import datetime

import httpx

from elasticdl.client.endpoint import Endpoint
from elasticdl.client.messages import NoResponse, Request, Response, plain
from elasticdl_core.errors import InvalidInputError

CONNECT_TIMEOUT_S = 5.0
TRANSPORT_ERRORS = (httpx.TransportError, httpx.DecodingError)
Filter = str | Sequence[str]
"""One value that a job must have, or several of which it must have one."""
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def default_headers(endpoint: Endpoint) -> dict[str, str]:
    """The headers of every request."""
    headers = {"User-Agent": "elasticdl-client", "Accept": "application/json"}
    if endpoint.token:
        headers["Authorization"] = f"Bearer {endpoint.token}"
    return headers


def trusts_environment(endpoint: Endpoint) -> bool:
    """Whether proxies of the environment apply: never on the way to this machine."""
    return not endpoint.local


def verified_by(endpoint: Endpoint) -> ssl.SSLContext | bool:
    """The certificates that an API under https is verified by; nothing is read for one without TLS.

    Raises:
        InvalidInputError: the file of certificates cannot be used.
    """
    if not endpoint.url.startswith("https:"):
        return False
    from elasticdl_runtime.tls import trust

    return trust(endpoint.ca_file)


def httpx_request(http: httpx.Client | httpx.AsyncClient, request: Request) -> httpx.Request:
    """A request in httpx's words, with a deadline for every wait in it.

    Raises:
        InvalidInputError: it holds characters that cannot be sent.
    """
    timeout = httpx.Timeout(request.read_timeout_s, connect=CONNECT_TIMEOUT_S, pool=CONNECT_TIMEOUT_S)
    body = {"json": plain(request.json)} if request.json is not None else {"content": request.content}
    try:
        return http.build_request(
            request.method,
            request.path,
            params=dict(request.params) or None,
            headers=dict(request.headers),
            timeout=timeout,
            **body,
        )
    except (ValueError, TypeError, httpx.InvalidURL) as error:
        raise InvalidInputError(
            f"{request.method} {request.path!a} cannot be sent: {error}",
            fix="give plain text, and numbers that JSON has",
        ) from None


def response_of(response: httpx.Response, *, whole: bool) -> Response:
    """A response in the client's words; its body only if it was read as a whole."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Response(response.status_code, headers, response.content if whole else b"")


def no_response_of(error: httpx.HTTPError) -> NoResponse:
    """Why there is no response."""
    return NoResponse(str(error) or type(error).__name__, sent=not isinstance(error, _NOT_SENT))


def texts(filters: Mapping[str, Filter]) -> dict[str, Sequence[str]]:
    """Filters as query parameters."""
    found: dict[str, Sequence[str]] = {
        key: [str(value)] if isinstance(value, str) else [str(one) for one in value] for key, value in filters.items()
    }
    if "ids" in found:
        found["ids"] = [",".join(found["ids"])]
    return found


def asks_for_none(filters: Mapping[str, Filter]) -> bool:
    """Whether a job must be one of none, or in one of no states: as a query that would be no filter at all."""
    return any(not filters.get(name, "all") for name in ("ids", "state"))


def moment_text(at: datetime | None) -> str | None:
    """A time as the API reads it; one without a zone is taken as local time."""
    return None if at is None else at.astimezone().isoformat()
