"""Measures the spread of zipf ids and a large dense kernel over two and four parameter servers.

./dev bench balance [--quick] [--steps 200]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.harness import Report, parse, zipf_ids
from benchmarks.harness.plots import bars
from benchmarks.harness.servers import Servers, parameter_servers
from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.partition import ps_of_ids
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_worker.parameters.types import Gradients

COUNTS = (2, 4)
SPACE, DIM, BATCH, FIELDS = 1_000_000, 16, 1024, 26
KERNEL = (4096, 4096)
SMALL = 40
GOAL = 1.1
DEADLINE_S = 30.0
ABOUT = """\
The worker's own client against real `python -m elasticdl_ps` processes. *zipf*: minibatches of {batch} samples with
{fields} ids each, drawn by a zipf law from a million; as in a worker the different ids of a minibatch are pulled and
their gradients pushed (Adam, dim {dim}). *dense*: a kernel of 64 MB and {small} layers of mixed small sizes. Counted
are the bytes of rows or parameters that each server sends and takes in, the rows or elements that it updates, and the
memory that it says it holds. The imbalance is the largest server over the mean; the target takes the worst count."""


@dataclass
class Counts:
    """The work of each server."""

    pulled: list[int]
    pushed: list[int]
    updated: list[int]
    held: list[int] = field(default_factory=list)

    def imbalances(self) -> dict[str, float]:
        """Largest over mean of each count."""
        named = {
            "bytes pulled": self.pulled,
            "bytes pushed": self.pushed,
            "updates": self.updated,
            "memory": self.held,
        }
        return {name: max(values) / (sum(values) / len(values)) for name, values in named.items() if sum(values)}


def counting(client: Any) -> Counts:
    """Counts what goes over the client's connections from now on."""
    servers = client._group.servers
    counts = Counts([0] * len(servers), [0] * len(servers), [0] * len(servers))
    for server in servers:
        server.call = _counted(server.call, server.index, counts)
    return counts


def _counted(call: Callable[..., Any], index: int, counts: Counts) -> Callable[..., Any]:
    async def counted(method: str, request: Any, **options: Any) -> Any:
        answer = await call(method, request, **options)
        if method == "Pull":
            counts.pulled[index] += len(answer)
        elif method == "PushGradients":
            counts.pushed[index] += request.nbytes
        return answer

    return counted


async def memory(servers: Servers) -> list[int]:
    """Bytes of parameters that each server says it holds."""
    service, held = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"], []
    for address in servers.addresses:
        client = RpcClient(address, service, servers.token())
        held.append(int((await client.call("Status", ps_pb2.StatusRequest(), deadline_s=DEADLINE_S)).bytes))
        await client.close()
    return held


async def zipf(num_ps: int, steps: int) -> Counts:
    """Minibatches of zipf ids."""
    with parameter_servers(num_ps) as servers:
        client = servers.client()
        await client.ensure_model({}, [], [TableSpec("ids", DIM)], OptimizerSpec("adam"), UpdateMode())
        counts = counting(client)
        drawn = zipf_ids(SPACE, steps * BATCH * FIELDS, 1).reshape(steps, -1)
        for batch in drawn:
            ids = np.unique(batch)
            await client.pull({"ids": ids})
            gradients = Gradients({}, {"ids": (ids, np.ones((len(ids), DIM), np.float32))})
            await client.push(gradients, version=0)
            owners = np.bincount(ps_of_ids(ids, num_ps), minlength=num_ps)
            counts.updated = [before + int(now) for before, now in zip(counts.updated, owners, strict=True)]
        counts.held = await memory(servers)
        await client.close()
    return counts


async def dense(num_ps: int, steps: int) -> Counts:
    """A model with one large kernel."""
    random = np.random.default_rng(2)
    specs = [DenseSpec("large/kernel", KERNEL)]
    for number in range(SMALL):
        extent = int(random.integers(8, 512))
        specs += [DenseSpec(f"small{number}/kernel", (extent, 128)), DenseSpec(f"small{number}/bias", (extent,))]
    values = {spec.name: np.zeros(spec.shape, np.float32) for spec in specs}
    with parameter_servers(num_ps) as servers:
        client = servers.client()
        await client.ensure_model(values, specs, [], OptimizerSpec("sgd"), UpdateMode())
        counts = counting(client)
        for _ in range(steps):
            await client.pull({})
            await client.push(Gradients(values), version=0)
        elements = [client._group.placement.dense_bytes(index) // 4 for index in range(num_ps)]
        counts.updated = [count * steps for count in elements]
        counts.held = await memory(servers)
        await client.close()
    return counts


def show(report: Report, results: dict[tuple[str, int], Counts]) -> None:
    """Tables, targets and a plot."""
    worst: dict[str, float] = {}
    rows, groups, heights = [], [], []
    for (kind, num_ps), counts in results.items():
        for what, value in counts.imbalances().items():
            rows.append([kind, num_ps, what, value])
            worst[kind] = max(worst.get(kind, 0.0), value)
        groups.append(f"{kind}, {num_ps} PS")
        heights.append(max(counts.imbalances().values()))
    report.table(["model", "PS", "count", "largest over mean"], rows)
    for kind, value in worst.items():
        report.target(f"imbalance_{kind}", value, GOAL, at_least=False)
    figure = bars(groups, {"largest over mean": heights}, "imbalance", goal=GOAL)
    figure.axes[0].set_ylim(bottom=0.9)
    report.plot("imbalance", figure, "The largest server's share over the mean")


def main() -> int:
    """Runs the benchmark."""
    options = parse(__doc__, steps=200)
    steps = min(options.steps, 30) if options.quick else options.steps
    report = Report("balance", "Balance", ABOUT.format(batch=BATCH, fields=FIELDS, dim=DIM, small=SMALL))
    results = {}
    for num_ps in COUNTS:
        report.say(f"zipf ids, {num_ps} PS")
        results["zipf", num_ps] = asyncio.run(zipf(num_ps, steps))
    for num_ps in COUNTS:
        report.say(f"dense, {num_ps} PS")
        results["dense", num_ps] = asyncio.run(dense(num_ps, max(2, steps // 40)))
    show(report, results)
    report.write()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
