"""Requests to the API: tried again while that helps, read whole or piece by piece."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import AsyncIterator
from typing import Any, Self

import httpx

from elasticdl.client.aio import waiting
from elasticdl.client.endpoint import Endpoint
from elasticdl.client.messages import NoResponse, Request, Response
from elasticdl.client.problems import error_of, unreachable
from elasticdl.client.requests import checked
from elasticdl.client.retry import RetryPolicy
from elasticdl.client.transport import (
    TRANSPORT_ERRORS,
    default_headers,
    httpx_request,
    no_response_of,
    response_of,
    trusts_environment,
    verified_by,
)
from elasticdl_core.errors import ElasticDLError, InvalidInputError


class AsyncApiConnection:
    """Does requests and says in the exceptions of ``elasticdl_core.errors`` what went wrong.

    Connections belong to the process that opened them: after a fork each process opens its own.

    Args:
        endpoint: where the API is and what opens it.
        retry: how often and after what pauses a request is tried again.

    Attributes:
        url: the API's address, for messages.
        retry: when a request is tried again.
        sleep: how pauses are waited out.
        now: seconds of a clock that only goes on.
    """

    def __init__(self, endpoint: Endpoint, retry: RetryPolicy) -> None:
        self.url = endpoint.url
        self.retry = retry
        self.sleep = waiting.sleep
        self.now = waiting.now
        self._endpoint = endpoint
        self._inherited: list[httpx.AsyncClient] = []
        self._process = os.getpid()
        self._opened = self._make_http()

    def __reduce__(self) -> tuple[object, ...]:
        """Travels as where it leads, and opens connections of its own there."""
        return type(self), (self._endpoint, self.retry)

    async def close(self) -> None:
        """Closes the connections of this process."""
        if not self._opened.is_closed:
            await self._http.aclose()

    @property
    def _http(self) -> httpx.AsyncClient:
        process = os.getpid()
        if process != self._process:
            # Two processes on one connection read each other's answers. What the parent goes on using is not closed.
            self._inherited.append(self._opened)
            self._opened, self._process = self._make_http(), process
        if self._opened.is_closed:
            raise InvalidInputError("this client is closed", fix="make another, or close it after its last call")
        return self._opened

    def _make_http(self) -> httpx.AsyncClient:
        endpoint = self._endpoint
        return httpx.AsyncClient(
            base_url=endpoint.url,
            headers=default_headers(endpoint),
            trust_env=trusts_environment(endpoint),
            verify=verified_by(endpoint),
        )

    async def exchange(self, request: Request, *, accept: frozenset[int] = frozenset()) -> Response:
        """Does a request, again while that helps, and gives its response.

        Args:
            request: the request.
            accept: statuses from 400 on that are a response like others, not an error.

        Raises:
            ElasticDLError: the API refused, or did not answer.
        """
        for attempt in itertools.count():
            outcome = await self._send(request)
            pause = self.retry.pause(request, outcome, attempt)
            if pause is None:
                break
            await self.sleep(pause)
        if isinstance(outcome, NoResponse):
            raise unreachable(outcome, self.url)
        if outcome.status >= 400 and outcome.status not in accept:
            raise error_of(outcome, request)
        return outcome

    async def fetch(self, request: Request) -> Any:
        """Does a request and gives the JSON of its response, None when it has no body.

        Raises:
            ElasticDLError: the API refused, did not answer, did not answer in JSON, or told of another job than was
                asked for.
        """
        response = await self.exchange(request)
        if not response.body:
            return None
        try:
            return checked(request, json.loads(response.body))
        except ValueError:
            raise ElasticDLError(
                f"{request.method} {self.url}{request.path} answered something that is not JSON",
                fix="check that ELASTICDL_API_URL is the address of an ElasticDL API, not of another web server",
            ) from None

    async def open(self, request: Request) -> AsyncResponseStream:
        """Begins a response that is read in pieces; one try. To be left with ``async with``."""
        try:
            http = self._http
            response = await http.send(httpx_request(http, request), stream=True)
            if not response.is_error:
                return AsyncResponseStream(response_of(response, whole=False), response)
            try:
                await response.aread()
            finally:
                await response.aclose()
            return AsyncResponseStream(response_of(response, whole=True), None)
        except TRANSPORT_ERRORS as error:
            return AsyncResponseStream(no_response_of(error), None)

    async def _send(self, request: Request) -> Response | NoResponse:
        try:
            http = self._http
            return response_of(await http.send(httpx_request(http, request)), whole=True)
        except TRANSPORT_ERRORS as error:
            return no_response_of(error)


class AsyncResponseStream:
    """A response that is read in pieces, or what came in its place.

    Attributes:
        outcome: its status and headers, with the body only if it is an error; or why there is none.
    """

    def __init__(self, outcome: Response | NoResponse, response: httpx.Response | None) -> None:
        self.outcome = outcome
        self._process = os.getpid()
        self._response = response
        self._pieces: AsyncIterator[bytes] | None = None if response is None else response.aiter_bytes()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._response is not None and self._process == os.getpid():
            await self._response.aclose()

    async def read(self) -> bytes | NoResponse | None:
        """The next piece, None at the end, or what broke the stream off."""
        if self._pieces is None:
            return None
        if self._process != os.getpid():
            return NoResponse("it was opened by another process, before a fork", sent=True)
        try:
            return await anext(self._pieces, None)
        except TRANSPORT_ERRORS as error:
            return no_response_of(error)
