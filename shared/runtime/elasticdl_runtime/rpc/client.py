"""Clients: calls by descriptor, each with a deadline and a token, failing with our own exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from elasticdl_core.errors import UnavailableError
from elasticdl_runtime.rpc.beside import connect_beside
from elasticdl_runtime.rpc.call_stream import CallStream, GrpcCallStream, SocketCallStream, StreamedCall
from elasticdl_runtime.rpc.credentials import RpcCredentials, TlsAddress, own_credentials, require_private
from elasticdl_runtime.rpc.errors import from_status
from elasticdl_runtime.rpc.framing import Frame, as_message
from elasticdl_runtime.rpc.polling import keep_poller
from elasticdl_runtime.rpc.service import MAX_MESSAGE_BYTES, is_frame

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # The time that a connection gets until the server's first frame, despite its name (gRPC, connection-backoff.md):
    # long enough for a loaded server and its TLS handshake, short enough for one that is stopped and replaced.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)


class PendingCall:
    """A call under way. Awaiting it, any number of times, gives its response.

    Raises:
        ElasticDLError: when awaited: what the server raised, or UnavailableError.
    """

    __slots__ = ("_call", "_client", "_method")

    def __init__(self, client: RpcClient, call: grpc.aio.UnaryUnaryCall[Any, Any], method: str) -> None:
        self._client = client
        self._call = call
        self._method = method

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from self._call.__await__())
        except grpc.aio.AioRpcError as error:
            raise from_status(error, self._method) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._client.closed or (task is not None and task.cancelling()):
                raise
            # Not the caller was cancelled, but the call: its channel was closed.
            raise self._client.was_closed(self._method) from None

    def cancel(self) -> None:
        """Gives the call up."""
        self._call.cancel()


class RpcClient:
    """A channel to one service.

    Args:
        address: ``unix:/path``, ``host:port`` on loopback, or ``tls://name@host:port``.
        service: the service's descriptor.
        token: the bearer token, or a function that returns the present one.
        credentials: what to show under TLS; those of this process by default.

    Raises:
        InvalidInputError: the address is beyond loopback and not under TLS, or there are no credentials.

    Attributes:
        address: as given.
        closed: whether the channel was closed.
    """

    def __init__(
        self,
        address: str,
        service: ServiceDescriptor,
        token: str | Callable[[], str],
        credentials: RpcCredentials | None = None,
    ) -> None:
        self.address = address
        self.closed = False
        self._token = token if callable(token) else lambda: token
        self._service = service
        self._tls = TlsAddress.parse(address)
        self._credentials: RpcCredentials | None = None
        if self._tls is not None:
            self._credentials = credentials or own_credentials()
        else:
            require_private(address)
        self._version = 0
        self._former: grpc.aio.Channel | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._streams: dict[str, CallStream] = {}
        self._opened: list[CallStream] = []
        self._present_token: str | None = None
        self._present_metadata = grpc.aio.Metadata()
        self._connect()

    async def call(self, method: str, request: Any, *, deadline_s: float) -> Any:
        """Makes a call with one response.

        Args:
            method: the RPC's name.
            request: a message, a frame (also encoded), or an async iterable of encoded pieces for client-streaming
                methods.
            deadline_s: seconds until the call fails with UnavailableError.

        Raises:
            ElasticDLError: what the server raised, or UnavailableError.
        """
        return await self.begin(method, request, deadline_s=deadline_s)

    def begin(self, method: str, request: Any, *, deadline_s: float) -> PendingCall:
        """Begins a call with one response, so that several are under way side by side without a task for each.

        Args:
            method: the RPC's name.
            request: as for ``call``.
            deadline_s: seconds until the call fails with UnavailableError.

        Returns:
            The call; await it, or cancel it.
        """
        self._renew()
        call = self._calls[method](request, timeout=deadline_s, metadata=self._metadata())
        return PendingCall(self, call, method)

    def begin_in_stream(self, method: str, what: int, frame: Frame | bytes, *, deadline_s: float) -> StreamedCall:
        """Begins a call over a stream that stays open for others; see ``Steps`` in ``ps.proto``.

        It is opened by the first call, and opened anew after a failure, or where the token is another.

        Args:
            method: the RPC that is the stream.
            what: tells the server which call it is.
            frame: the request.
            deadline_s: seconds until the call, and with it all that are under way on the stream, fails with
                UnavailableError.

        Returns:
            The call; await it, or cancel it.

        Raises:
            InvalidInputError: the request is no frame.
        """
        self._renew()
        token = self._token()
        stream = self._streams.get(method)
        if stream is None or stream.ended or stream.token != token:
            if stream is not None and not stream.ended:
                stream.retire()
            stream = self._open(method, token)
        return stream.begin(what, frame, deadline_s)

    async def stream(
        self, method: str, request: Any | AsyncIterable[Any], *, deadline_s: float | None
    ) -> AsyncGenerator[Any]:
        """Makes a call with a stream of responses; ``deadline_s`` None follows for as long as the caller reads.

        Raises:
            ElasticDLError: what the server raised, or UnavailableError.
        """
        self._renew()
        call = self._calls[method](request, timeout=deadline_s, metadata=self._metadata())
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise from_status(error, method) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self.was_closed(method) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        """Closes the channel; calls under way fail with UnavailableError."""
        self.closed = True
        for stream in self._opened:
            await stream.close(
                UnavailableError(f"the connection to {self.address} was closed", fix="it is tried again")
            )
        for channel in (self._channel, self._former):
            if channel is not None:
                await channel.close()
        await asyncio.gather(*self._closing)

    def was_closed(self, method: str) -> UnavailableError:
        """The error of a call whose channel was closed."""
        return UnavailableError(f"{method}: the connection to {self.address} was closed", fix="it is tried again")

    def _connect(self) -> None:
        """Makes the channel and its calls, with the present certificate if there is one."""
        keep_poller()
        if self._tls is None or self._credentials is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=(*_OPTIONS, *_name_options("localhost")))
        else:
            self._version = self._credentials.version
            self._channel = grpc.aio.secure_channel(
                self._tls.place,
                self._credentials.of_channel(),
                options=(*_OPTIONS, *_name_options(self._tls.name)),
            )
        self._calls: dict[str, Any] = {}
        for method in self._service.methods:
            sides = (method.client_streaming, method.server_streaming)
            kind = "_".join("stream" if streams else "unary" for streams in sides)
            self._calls[method.name] = getattr(self._channel, kind)(
                f"/{self._service.full_name}/{method.name}",
                request_serializer=as_message if is_frame(method.input_type) else _serialize,
                response_deserializer=None
                if is_frame(method.output_type)
                else GetMessageClass(method.output_type).FromString,
            )

    def _renew(self) -> None:
        """Connects anew after the certificate was replaced. What is under way goes on over the channel before.

        That one is closed at the next time, hours later: then only what has no deadline is still under way on it.
        """
        if self._credentials is None or self.closed or self._credentials.version == self._version:
            return
        if self._former is not None:
            closing = asyncio.get_running_loop().create_task(self._former.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._former = self._channel
        for stream in self._streams.values():
            if not stream.ended:
                stream.retire()
        self._streams.clear()
        self._connect()

    def _open(self, method: str, token: str) -> CallStream:
        self._opened = [stream for stream in self._opened if not stream.gone]
        # A stream has no deadline: its calls have.
        beside = connect_beside(self.address)
        stream: CallStream
        if beside is not None:
            stream = SocketCallStream(beside, method, token, MAX_MESSAGE_BYTES)
        else:
            stream = GrpcCallStream(self._calls[method](metadata=self._metadata()), method, token)
        self._opened.append(stream)
        self._streams[method] = stream
        return stream

    def _metadata(self) -> grpc.aio.Metadata:
        token = self._token()
        if token != self._present_token:
            self._present_token = token
            self._present_metadata = grpc.aio.Metadata(("authorization", f"Bearer {token}"))
        return self._present_metadata


def _name_options(name: str) -> tuple[tuple[str, str], ...]:
    """Whom calls are for; under TLS the server's certificate has to be for that name."""
    return ("grpc.default_authority", name), ("grpc.ssl_target_name_override", name)


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
