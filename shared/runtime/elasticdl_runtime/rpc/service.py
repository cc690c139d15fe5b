"""Servers: a servicer object bound to a service descriptor, with tokens and errors handled at the door.

A servicer has a method for each RPC of its service, named as in the ``.proto`` file. Unary methods are
``async def Method(self, request, caller) -> response``; server-streaming ones are async generators of the same
arguments; client-streaming ones take an async iterator. Where the type is ``Chunk``, the value is the frame's
``bytes``. ``caller`` is what the authenticator returned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from elasticdl_core.errors import ElasticDLError, InvalidInputError, UnauthenticatedError
from elasticdl_runtime.rpc.errors import to_status

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
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)

Authenticator = Callable[[str], Any]
"""Takes a bearer token; returns the caller or raises UnauthenticatedError or PermissionDeniedError."""

_log = structlog.get_logger(__name__)


class _Malformed:
    """Stands for a request that could not be decoded, so that the door can answer rather than the transport."""


def is_frame(descriptor: Any) -> bool:
    """Whether a message type stands for a frame (``Chunk`` in the ``.proto`` files)."""
    return bool(descriptor.name == "Chunk")


def make_server(service: ServiceDescriptor, servicer: object, authenticate: Authenticator) -> grpc.aio.Server:
    """Builds a server for one service; add its port with ``listen`` and start it.

    Args:
        service: the service's descriptor, e.g. ``ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]``.
        servicer: has a method for each RPC.
        authenticate: turns the bearer token of a call into its caller.

    Raises:
        TypeError: the servicer lacks a method.
    """
    server = grpc.aio.server(options=_OPTIONS)
    handlers = {method.name: _handler(method, servicer, authenticate) for method in service.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
    return server


def listen(server: grpc.aio.Server, address: str) -> str:
    """Adds an insecure port on a unix socket or on loopback; returns the address with the actual port.

    Args:
        server: a server that is not started yet.
        address: ``unix:/path`` or ``127.0.0.1:port`` (port 0 picks one).

    Raises:
        InvalidInputError: the address is beyond loopback.
    """
    if address.startswith("unix:"):
        server.add_insecure_port(address)
        return address
    host, _, _ = address.rpartition(":")
    if host not in {"127.0.0.1", "localhost", "[::1]"}:
        raise InvalidInputError(
            f"refusing to listen on {address} without TLS", fix="use a unix socket or 127.0.0.1, or configure TLS"
        )
    return f"{host}:{server.add_insecure_port(address)}"


def _handler(method: MethodDescriptor, servicer: object, authenticate: Authenticator) -> grpc.RpcMethodHandler:
    behaviour = getattr(servicer, method.name, None)
    if behaviour is None:
        raise TypeError(f"{type(servicer).__name__} has no method {method.name}")
    deserialize = _deserializer(method.input_type)
    serialize = None if is_frame(method.output_type) else lambda message: message.SerializeToString()
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(
            _streaming(behaviour, method.name, authenticate), deserialize, serialize
        )
    wrapped = _unary(behaviour, method.name, authenticate)
    if method.client_streaming:
        return grpc.stream_unary_rpc_method_handler(wrapped, deserialize, serialize)
    return grpc.unary_unary_rpc_method_handler(wrapped, deserialize, serialize)


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


def _unary(behaviour: Callable[..., Awaitable[Any]], name: str, authenticate: Authenticator) -> Callable[..., Any]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            caller = authenticate(_bearer(context))
            _refuse_malformed(request)
            return await behaviour(request, caller)
        except ElasticDLError as error:
            status, details = to_status(error)
            await context.abort(status, details)
        except Exception as error:
            if isinstance(error, grpc.aio.AbortError):
                raise
            _log.exception("rpc failed", method=name)
            await context.abort(grpc.StatusCode.INTERNAL, f"{name}: {type(error).__name__}: {error}")

    return call


def _streaming(
    behaviour: Callable[..., AsyncIterator[Any]], name: str, authenticate: Authenticator
) -> Callable[..., Any]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        try:
            caller = authenticate(_bearer(context))
            _refuse_malformed(request)
            async for response in behaviour(request, caller):
                yield response
        except ElasticDLError as error:
            status, details = to_status(error)
            await context.abort(status, details)
        except Exception as error:
            if isinstance(error, grpc.aio.AbortError):
                raise
            _log.exception("rpc failed", method=name)
            await context.abort(grpc.StatusCode.INTERNAL, f"{name}: {type(error).__name__}: {error}")

    return call


def _bearer(context: grpc.aio.ServicerContext) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str) and value.startswith("Bearer "):
            return value.removeprefix("Bearer ")
    raise UnauthenticatedError("the call has no token", fix="send 'authorization: Bearer <token>'")


def _refuse_malformed(request: Any) -> None:
    if isinstance(request, _Malformed):
        raise InvalidInputError("the request cannot be decoded", fix="use the protocol of this version")
