"""Trains a linear model with a table through the published protocol: ``linear_model.py ADDRESS`` (token in TOKEN).

A program of its own that knows the published file, TensorFlow's tensors and the address, and nothing of this project.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, empty_pb2
from tensorflow.core.framework import tensor_pb2

STEPS, RATE = 300, 0.5


def compile_messages(folder: Path) -> None:
    """Compiles the published file, with the descriptors that TensorFlow has."""
    known = descriptor_pb2.FileDescriptorSet()

    def add(descriptor) -> None:
        for one in descriptor.dependencies:
            add(one)
        if descriptor.name not in {one.name for one in known.file}:
            descriptor.CopyToProto(known.file.add())

    add(tensor_pb2.DESCRIPTOR)
    add(empty_pb2.DESCRIPTOR)
    (folder / "known.bin").write_bytes(known.SerializeToString())
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", f"--descriptor_set_in={folder / 'known.bin'}"),
        *(f"-I{Path(__file__).parent}", f"--python_out={folder}", f"--grpc_python_out={folder}", "elasticdl.proto"),
    ]
    subprocess.run(command, check=True, timeout=100)


def main(address: str) -> None:
    """Trains ``y = w x + t[id]`` by plain gradients; prints what is left of the loss and the parameters."""
    with tempfile.TemporaryDirectory() as folder:
        compile_messages(Path(folder))
        sys.path.insert(0, folder)
        import elasticdl_pb2 as pb
        import elasticdl_pb2_grpc
    draw = np.random.default_rng(0)
    x, ids = draw.normal(size=(256, 3)).astype(np.float32), draw.integers(0, 5, 256)
    y = x @ np.float32([1, -2, 3]) + np.float32([0, 1, 2, 3, 4])[ids]
    metadata = [
        ("authorization", f"Bearer {os.environ['TOKEN']}"),
        ("optimizer", json.dumps({"name": "sgd", "params": {"learning_rate": RATE}})),
    ]
    with grpc.insecure_channel(address) as channel:
        stub = elasticdl_pb2_grpc.PserverStub(channel)

        def call(name: str, message):
            return getattr(stub, name)(message, metadata=metadata, timeout=20)

        info = pb.EmbeddingTableInfo(name="t", dim=1, initializer="zeros")
        call("push_embedding_table_infos", pb.EmbeddingTableInfos(embedding_table_infos=[info]))
        first = pb.Model()
        first.dense_parameters["w"].CopyFrom(tf.make_tensor_proto(np.zeros((3, 1), np.float32)))
        call("push_dense_paramters", first)
        version = 0
        for _ in range(STEPS):
            w = tf.make_ndarray(call("pull_dense_parameters", pb.PullDenseParametersRequest()).dense_parameters["w"])
            wanted = np.unique(ids).tolist()
            pulled = call("pull_embedding_table", pb.PullEmbeddingTableRequest(name="t", indices=wanted))
            rows = tf.make_ndarray(pulled.concat_tensors)[:, 0]
            error = x @ w[:, 0] + rows[ids] - y
            push = pb.Model(version=version)
            gradient = (x.T @ error / len(x))[:, None].astype(np.float32)
            push.dense_parameters["w"].CopyFrom(tf.make_tensor_proto(gradient))
            # One row a record, as TensorFlow's IndexedSlices have them: equal ids come again and again.
            vectors = (error / len(x))[:, None].astype(np.float32)
            push.embedding_tables["t"].concat_tensors.CopyFrom(tf.make_tensor_proto(vectors))
            push.embedding_tables["t"].ids.extend(ids.tolist())
            answer = call("push_gradients", push)
            assert answer.accepted
            version = answer.version
    print(
        json.dumps({"version": version, "loss": float(np.mean(error**2)), "w": w[:, 0].tolist(), "t": rows.tolist()})
    )


if __name__ == "__main__":
    main(sys.argv[1])
