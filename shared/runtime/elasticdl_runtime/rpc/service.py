"""Servers: a servicer object bound to a service descriptor, with tokens and errors handled at the door.

A servicer has a method for each RPC of its service, named as in the ``.proto`` file. Unary methods are
``async def Method(self, request, caller) -> response``; server-streaming ones are async generators of the same
arguments; client-streaming ones take an async iterator. Where the type is ``Chunk``, a method is given the frame's
``bytes`` and returns a ``Frame``, or its bytes. ``caller`` is what the authenticator returned. Methods that stream
both ways carry calls, and are ``def Method(self, what, frame, caller) -> answer``, made for each message; see
``served_stream``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from elasticdl_core.errors import InvalidInputError, UnauthenticatedError
from elasticdl_runtime.lifecycle import settle
from elasticdl_runtime.rpc.credentials import (
    RpcCredentials,
    TlsAddress,
    check_peer,
    own_credentials,
    require_private,
)
from elasticdl_runtime.rpc.errors import answer_to
from elasticdl_runtime.rpc.framing import as_message
from elasticdl_runtime.rpc.polling import keep_poller
from elasticdl_runtime.rpc.served_sockets import ServedSockets
from elasticdl_runtime.rpc.served_stream import ServedStreams
from elasticdl_runtime.telemetry.spans import span

MAX_MESSAGE_BYTES = 1 << 30
CHUNK_BYTES = 64 << 20
"""Frames larger than this travel in pieces where the method streams."""
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)

Authenticator = Callable[[str], Any]
"""Takes a bearer token; returns the caller or raises UnauthenticatedError or PermissionDeniedError."""


class Server:
    """A server for one service: add its port with ``listen``, start it, and stop it.

    Args:
        server: gRPC's.
        streams: those that clients keep open.
        sockets: those that they keep open beside gRPC, on this machine.
        door: lets callers in.
    """

    def __init__(
        self, server: grpc.aio.Server, streams: ServedStreams, sockets: ServedSockets, door: _CallGate
    ) -> None:
        self._door = door
        self._server = server
        self._streams = streams
        self._sockets = sockets
        self._addresses: list[str] = []

    def serve_too(self, service: ServiceDescriptor, servicer: object, name: str) -> None:
        """Serves another service beside the first, before the start; its methods take the call's metadata, too.

        Args:
            service: its descriptor; unary methods only.
            servicer: has an ``async def method(self, request, caller, metadata) -> response`` for each RPC.
            name: under which it is called.
        """
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(
                _unary(getattr(servicer, method.name), method.name, self._door, with_metadata=True),
                _deserializer(method.input_type),
                _serialize,
            )
            for method in service.methods
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))

    def add_insecure_port(self, address: str) -> int:
        """Serves an address too, once started; returns its port."""
        port = int(self._server.add_insecure_port(address))
        self._addresses.append(address)
        return port

    def add_tls_port(self, address: TlsAddress, credentials: RpcCredentials) -> int:
        """Serves a place under TLS too, once started, to those who show a certificate; returns its port."""
        self._door.under_tls = True
        return int(self._server.add_secure_port(address.place, credentials.of_server()))

    async def start(self) -> None:
        """Begins to serve."""
        await self._server.start()
        for address in self._addresses:
            self._sockets.listen(address)

    async def stop(self, grace: float | None) -> None:
        """Takes no further calls, and waits for those under way. Who is cancelled meanwhile cancels them at once.

        So nothing of it is left when this ends, however it ends.

        Args:
            grace: for so many seconds; None cancels them at once.
        """
        self._streams.end()
        # Not cancelled along with its caller: gRPC would leave a server that is neither running nor stopped.
        stopping = asyncio.ensure_future(self._close(grace))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await settle(stopping, asyncio.ensure_future(self._close(None)))
            raise

    async def _close(self, grace: float | None) -> None:
        await asyncio.gather(self._sockets.close(grace), self._server.stop(grace))


class _CallGate:
    """Says who calls, or refuses."""

    def __init__(self, authenticate: Authenticator) -> None:
        self.authenticate = authenticate
        self.under_tls = False

    def enter(self, context: grpc.aio.ServicerContext) -> Any:
        """Whom the token names; under TLS the certificate has to name the same."""
        caller = self.authenticate(_bearer(context))
        if self.under_tls:
            check_peer(context, caller)
        return caller


class _Malformed:
    """Stands for a request that could not be decoded, so that the door can answer rather than the transport."""


def is_frame(descriptor: Any) -> bool:
    """Whether a message type stands for a frame (``Chunk`` in the ``.proto`` files)."""
    return bool(descriptor.name == "Chunk")


def make_server(service: ServiceDescriptor, servicer: object, authenticate: Authenticator) -> Server:
    """Builds a server for one service.

    Args:
        service: the service's descriptor, e.g. ``ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]``.
        servicer: has a method for each RPC.
        authenticate: turns the bearer token of a call into its caller.

    Raises:
        TypeError: the servicer lacks a method.
    """
    keep_poller()
    server, streams, door = grpc.aio.server(options=_OPTIONS), ServedStreams(), _CallGate(authenticate)
    calls = [method.name for method in service.methods if method.client_streaming and method.server_streaming]
    handlers = {method.name: _handler(method, servicer, door, streams) for method in service.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
    behaviours = {name: getattr(servicer, name) for name in calls}
    return Server(server, streams, ServedSockets(behaviours, authenticate, MAX_MESSAGE_BYTES), door)


def listen(server: Server, address: str, credentials: RpcCredentials | None = None) -> str:
    """Adds a port on a unix socket, on loopback, or anywhere under TLS; returns the address with the actual port.

    Args:
        server: a server that is not started yet.
        address: ``unix:/path``, ``127.0.0.1:port`` or ``tls://name@host:port`` (port 0 picks one).
        credentials: what to show under TLS; those of this process by default.

    Raises:
        InvalidInputError: the address is beyond loopback and not under TLS, or there are no credentials.
    """
    secured = TlsAddress.parse(address)
    if secured is not None:
        port = server.add_tls_port(secured, credentials or own_credentials())
        return str(replace(secured, place=f"{secured.place.rpartition(':')[0]}:{port}"))
    require_private(address)
    port = server.add_insecure_port(address)
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


def _handler(
    method: MethodDescriptor, servicer: object, door: _CallGate, streams: ServedStreams
) -> grpc.RpcMethodHandler:
    behaviour = getattr(servicer, method.name, None)
    if behaviour is None:
        raise TypeError(f"{type(servicer).__name__} has no method {method.name}")
    if method.client_streaming and method.server_streaming:
        return grpc.stream_stream_rpc_method_handler(_of_calls(behaviour, method.name, door, streams))
    deserialize = _deserializer(method.input_type)
    serialize = as_message if is_frame(method.output_type) else _serialize
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_streaming(behaviour, method.name, door), deserialize, serialize)
    wrapped = _unary(behaviour, method.name, door)
    if method.client_streaming:
        return grpc.stream_unary_rpc_method_handler(wrapped, deserialize, serialize)
    return grpc.unary_unary_rpc_method_handler(wrapped, deserialize, serialize)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _deserializer(descriptor: Any) -> Callable[[bytes], Any] | None:
    if is_frame(descriptor):
        return None
    message_class = GetMessageClass(descriptor)

    def deserialize(data: bytes) -> Any:
        try:
            return message_class.FromString(data)
        except DecodeError:
            return _Malformed()

    return deserialize


def _unary(
    behaviour: Callable[..., Awaitable[Any]], name: str, door: _CallGate, *, with_metadata: bool = False
) -> Callable[..., Any]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            caller = door.enter(context)
            _refuse_malformed(request)
            more = (dict(context.invocation_metadata() or ()),) if with_metadata else ()
            with span(name, "rpc", alone=False):
                return await behaviour(request, caller, *more)
        except Exception as error:
            await _abort(context, error, name)

    return call


def _streaming(behaviour: Callable[..., AsyncGenerator[Any]], name: str, door: _CallGate) -> Callable[..., Any]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> AsyncGenerator[Any]:
        try:
            caller = door.enter(context)
            _refuse_malformed(request)
            # Closed at once when the call is cut: what it holds does not wait for the collection of garbage.
            async with contextlib.aclosing(behaviour(request, caller)) as responses:
                async for response in responses:
                    yield response
        except Exception as error:
            await _abort(context, error, name)

    return call


def _of_calls(
    behaviour: Callable[..., Any], name: str, door: _CallGate, streams: ServedStreams
) -> Callable[..., Any]:
    async def call(_: object, context: grpc.aio.ServicerContext) -> None:
        try:
            door.enter(context)
            token = _bearer(context)
            await streams.serve(context, name, behaviour, lambda: door.authenticate(token))
        except Exception as error:
            await _abort(context, error, name)

    return call


async def _abort(context: grpc.aio.ServicerContext, error: Exception, name: str) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    await context.abort(*answer_to(error, name))


def _bearer(context: grpc.aio.ServicerContext) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str) and value.startswith("Bearer "):
            return value.removeprefix("Bearer ")
    raise UnauthenticatedError("the call has no token", fix="send 'authorization: Bearer <token>'")


def _refuse_malformed(request: Any) -> None:
    if isinstance(request, _Malformed):
        raise InvalidInputError("the request cannot be decoded", fix="use the protocol of this version")
