"""Address and token of the API: arguments, the environment, a context, or the cluster of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from elasticdl.client.contexts import CONTEXT_VARIABLE, Context, contexts_file, read_contexts
from elasticdl_core.errors import InvalidInputError, UnavailableError
from elasticdl_runtime.home import NoHomeError
from elasticdl_runtime.hosts import is_loopback

URL_VARIABLE = "ELASTICDL_API_URL"
TOKEN_VARIABLE = "ELASTICDL_TOKEN"
CA_VARIABLE = "ELASTICDL_CA_FILE"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An API and the right to use it.

    Attributes:
        url: base address, without a slash at its end.
        token: bearer token; empty for none.
        ca_file: certificates that an API under https is verified by; those that this machine trusts if empty.
    """

    url: str
    token: str = field(default="", repr=False)
    ca_file: str = ""

    @property
    def local(self) -> bool:
        """Whether the API is on this machine, so that it sees the same paths."""
        return is_loopback(urlsplit(self.url).hostname or "")


def find_endpoint(
    api_url: str | None = None, token: str | None = None, variables: Mapping[str, str] | None = None
) -> Endpoint:
    """Finds the API: from the arguments, ELASTICDL_API_URL and ELASTICDL_TOKEN, a context, or this machine's cluster.

    Raises:
        InvalidInputError: the address is no http or https URL.
        UnavailableError: no address is given and no cluster runs on this machine.
    """
    known = os.environ if variables is None else variables
    url = api_url or known.get(URL_VARIABLE, "")
    secret = token if token is not None else known.get(TOKEN_VARIABLE, "")
    if not url:
        context = _context(known)
        if context is not None:  # a token of the environment is of the API that the environment names
            return find_endpoint(
                context.url,
                token if token is not None else context.token,
                {CA_VARIABLE: known.get(CA_VARIABLE, "") or context.ca_file},
            )
        return _local_cluster(secret, known.get(CA_VARIABLE, ""))
    if not _is_address(url):
        raise InvalidInputError(
            f"{url!r} is not the address of an API",
            fix=f"set {URL_VARIABLE} (or api_url) to something like http://127.0.0.1:8080",
        )
    ca_file = known.get(CA_VARIABLE, "")
    here = _cluster_here() if not secret or (url.startswith("https:") and not ca_file) else None
    if here is not None and here.url == url.rstrip("/"):
        secret, ca_file = secret or here.token, ca_file or here.ca_file
    return Endpoint(url.rstrip("/"), _checked(secret), ca_file)


def names_api(variables: Mapping[str, str] | None = None) -> bool:
    """Whether the environment or a context names an API; without that, this machine's cluster is meant.

    Raises:
        NotFoundError: there is no context of the name that is asked for.
    """
    known = os.environ if variables is None else variables
    return bool(known.get(URL_VARIABLE)) or _context(known) is not None


def _is_address(url: str) -> bool:
    """Whether requests can be sent there: http or https, a host, and a port if one is named."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - refuses what is no port
        (parts.hostname or "").encode("idna")
    except ValueError:
        return False
    plain = url.isprintable() and not any(letter.isspace() for letter in url)
    return plain and parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.query


def _checked(token: str) -> str:
    """A token that a header can hold.

    Raises:
        InvalidInputError: it cannot be one; does not show it.
    """
    if any(not "!" <= letter <= "~" for letter in token):
        raise InvalidInputError(
            "the token holds spaces or characters that no token has",
            fix=f"set {TOKEN_VARIABLE} (or token) to the token alone, as it was given to you",
        )
    return token


def _context(variables: Mapping[str, str]) -> Context | None:
    """The context that is asked for or in use, if any.

    Raises:
        NotFoundError: there is none of the name that is asked for.
        NoHomeError: one is asked for, and nobody knows where they are.
    """
    asked = variables.get(CONTEXT_VARIABLE, "")
    try:
        contexts = read_contexts(contexts_file(variables))
    except NoHomeError:
        if asked:
            raise
        return None  # who has no home has no contexts
    name = asked or contexts.current
    return contexts.find(name) if name else None


def _local_cluster(token: str, ca_file: str) -> Endpoint:
    found = _cluster_here()
    if found is None:
        raise UnavailableError(
            "no cluster runs on this machine, and no API address is given",
            fix=f"start one with `elasticdl up`, set {URL_VARIABLE} and {TOKEN_VARIABLE}, "
            "or train in this process with `elasticdl train --local`",
        )
    return Endpoint(found.url, _checked(token) or found.token, ca_file or found.ca_file)


def _cluster_here() -> Endpoint | None:
    """The cluster that `elasticdl up` started on this machine, if one runs."""
    from elasticdl_runtime.cluster import locate

    found = locate()
    return None if found is None else Endpoint(found.api_url.rstrip("/"), found.token, found.ca_file)
