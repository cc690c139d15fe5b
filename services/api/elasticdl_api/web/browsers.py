"""Protection from pages of others: names that the api answers to, and the headers of every answer.

A page can give its own name the address of this machine (DNS rebinding); a browser then lets it read what is here.
The name stays in the Host header, so names that nobody said are ours are refused. Addresses need no such care.
"""

from __future__ import annotations

import gzip
import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elasticdl_api.web.problems import problem_response
from elasticdl_api.web.safe_headers import add_headers, policy_of_page
from elasticdl_core.errors import ElasticDLError, PermissionDeniedError

LOOPBACK_NAMES = frozenset({"localhost"})
_HEALTH = frozenset({"/healthz", "/readyz"})
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.%]+\]|[^:\[\]@/\\\s]+)(?::(?P<port>[0-9]{1,5}))?")


class BrowserRules:
    """ASGI middleware that refuses unknown names and foreign pages, and gives every answer the headers of a safe one.

    Args:
        app: handles what is not refused.
        hosts: the names that the api is known by, besides those of loopback.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._names = LOOPBACK_NAMES | {name.lower() for name in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        secure = scope.get("scheme") == "https"
        page = bytearray()
        held: list[Message] = []

        async def safe(message: Message) -> None:
            # A page without a policy of its own waits for its end: the policy names the scripts in it.
            # Everything else goes on as it comes.
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                has_policy = "content-security-policy" in headers
                add_headers(headers, status=message["status"], secure=secure)
                if not has_policy and headers.get("content-type", "").startswith("text/html"):
                    held.append(message)
                    return
            elif held:
                page.extend(message.get("body", b""))
                if message.get("more_body"):
                    return
                start = held.pop()
                headers = MutableHeaders(scope=start)
                html = gzip.decompress(page) if headers.get("content-encoding") == "gzip" else bytes(page)
                headers["Content-Security-Policy"] = policy_of_page(html)
                await send(start)
                message = {**message, "body": bytes(page)}
            await send(message)

        try:
            if scope["path"] not in _HEALTH:
                self._check(scope)
        except ElasticDLError as error:
            await problem_response(error)(scope, receive, safe)
            return
        await self._app(scope, receive, safe)

    def _check(self, scope: Scope) -> None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not self._known(hosts[0]):
            raise PermissionDeniedError(
                f"this api is not known by the name {', '.join(hosts)[:200]!r}",
                fix="use its address, or have the name added to ELASTICDL_API_ALLOWED_HOSTS",
            )
        for name, value in scope["headers"]:
            if name == b"origin" and _place(_host_of(value.decode("latin-1"))) != _place(hosts[0]):
                raise PermissionDeniedError(
                    f"a page of {value.decode('latin-1')[:200]!r} asks; only pages of this api may",
                    fix="send the request from a program, or from a page that this api serves",
                )

    def _known(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match["name"].lower().rstrip(".")
        try:
            ipaddress.ip_address(name.strip("[]").partition("%")[0])
        except ValueError:
            return name in self._names
        return True


def _host_of(origin: str) -> str:
    """The host and port of an origin; nothing for what is no origin, such as ``null``."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return parts.netloc if parts.scheme in {"http", "https"} and not parts.path else ""


def _place(host: str) -> str:
    """A host as it is compared: without the port that stands for itself. A proxy may speak TLS in front of us."""
    return host.lower().removesuffix(":443").removesuffix(":80")
