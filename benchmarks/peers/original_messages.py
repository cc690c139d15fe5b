"""The wire of the original's design: protobuf messages made here, one for each purpose, and their method names."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "benchmark.Pserver"
_FIELDS = descriptor_pb2.FieldDescriptorProto
_LAYOUT: dict[str, list[tuple[str, int, bool, str]]] = {
    "Tensor": [
        ("name", _FIELDS.TYPE_STRING, False, ""),
        ("dims", _FIELDS.TYPE_INT64, True, ""),
        ("content", _FIELDS.TYPE_BYTES, False, ""),
        ("ids", _FIELDS.TYPE_INT64, True, ""),
    ],
    "Model": [
        ("version", _FIELDS.TYPE_INT64, False, ""),
        ("dense", _FIELDS.TYPE_MESSAGE, True, "Tensor"),
        ("tables", _FIELDS.TYPE_MESSAGE, True, "Tensor"),
    ],
    "PullRows": [("name", _FIELDS.TYPE_STRING, False, ""), ("ids", _FIELDS.TYPE_INT64, True, "")],
}


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="benchmark.proto", package="benchmark", syntax="proto3")
    for name, fields in _LAYOUT.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, repeated, of) in enumerate(fields, 1):
            label = _FIELDS.LABEL_REPEATED if repeated else _FIELDS.LABEL_OPTIONAL
            made = message.field.add(name=field, number=number, type=kind, label=label)
            if of:
                made.type_name = f".benchmark.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"benchmark.{n}")) for n in _LAYOUT}


_CLASSES = _messages()
Tensor, Model, PullRows = _CLASSES["Tensor"], _CLASSES["Model"], _CLASSES["PullRows"]
METHODS = {
    "pull_dense": (Model, Model),
    "pull_embedding_vectors": (PullRows, Tensor),
    "push_gradients": (Model, Model),
}


def tensor(name: str, value: Any, ids: Any = ()) -> Any:
    """A message of an array."""
    return Tensor(name=name, dims=value.shape, content=value.tobytes(), ids=ids)


def array(message: Any) -> Any:
    """The array of a message."""
    return np.frombuffer(message.content, np.float32).reshape(tuple(message.dims))
