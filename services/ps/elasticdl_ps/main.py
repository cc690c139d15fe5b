"""The process: one parameter server, built from its environment."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import structlog

from elasticdl_core.model import OptimizerSpec, TableSpec
from elasticdl_ps import gateway
from elasticdl_ps.kernels import KernelSet, load_kernels
from elasticdl_ps.optimizers import Optimizer
from elasticdl_ps.servicer import SERVICE, ParameterServer
from elasticdl_ps.settings import PsSettings
from elasticdl_ps.store.partition import Partition
from elasticdl_ps.store.table import EmbeddingTable
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.lifecycle import run_service
from elasticdl_runtime.memory import keep_large_blocks
from elasticdl_runtime.rpc.service import listen, make_server
from elasticdl_runtime.telemetry import meters
from elasticdl_runtime.telemetry.logs import configure_logs
from elasticdl_runtime.tokens import Claims, verify

_WARM_UP_IDS = 1000
_GRACE_S = 2.0
_log = structlog.get_logger(__name__)


async def serve(stop: asyncio.Event) -> int:
    """Serves until told to stop.

    Args:
        stop: set when the process shall end.

    Raises:
        InvalidInputError: a setting is missing or wrong.
    """
    settings = PsSettings.read()
    configure_logs(role="ps", job=settings.job_id, index=settings.index, incarnation=settings.incarnation)
    keep_large_blocks()
    _choose_cache_folder()
    kernels = load_kernels(settings.ps_kernels)
    await asyncio.to_thread(warm_up, kernels)

    def authenticate(token: str) -> Claims:
        return verify(settings.job_secret, token, job_id=settings.job_id)

    orphaned = asyncio.Event()
    if settings.own_folder:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _end_with_input, orphaned, stop)
    servicer = ParameterServer(Partition(kernels), settings.index, settings.num_ps)
    meters.show_all("partition", servicer.meters)
    server = make_server(SERVICE, servicer, authenticate)
    server.serve_too(gateway.SERVICE, servicer.published, gateway.NAME)
    address = listen(server, settings.listen)
    failpoint("ps.before_serving")
    await server.start()
    _log.info("serving", address=address, num_ps=settings.num_ps)
    await stop.wait()
    servicer.stop()
    await server.stop(_GRACE_S)
    servicer.close()
    _log.info("stopped")
    if orphaned.is_set():
        shutil.rmtree(settings.own_folder, ignore_errors=True)
    return 0


def main() -> int:
    """Runs the process; returns its exit code."""
    return run_service(serve)


def _end_with_input(*ends: asyncio.Event) -> None:
    """Ends with the program at the other end of the standard input, however that ends."""
    if not os.read(sys.stdin.fileno(), 1024):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        for one in ends:
            one.set()


def _choose_cache_folder() -> None:
    """Gives numba a folder for compiled kernels where the package itself cannot be written to, as in a container."""
    if "NUMBA_CACHE_DIR" not in os.environ and not os.access(Path(__file__).parent / "kernels" / "compiled", os.W_OK):
        os.environ["NUMBA_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / f"elasticdl-kernels-{os.getuid()}")


def warm_up(kernels: KernelSet) -> None:
    """Compiles, or loads from the cache, what every job needs, so that no first pull waits for it."""
    table = EmbeddingTable(TableSpec("warm-up", 4), Optimizer(OptimizerSpec("sgd")), kernels)
    # So many that the map of ids grows.
    ids = np.frombuffer(np.arange(_WARM_UP_IDS).tobytes(), np.int64)
    out = np.empty((_WARM_UP_IDS, 4), np.float32)
    table.read(ids, out)
    kernels.has_duplicates(ids)
    kernels.merge_rows(ids, out, np.empty_like(ids), np.empty_like(out))  # of the gradients of a round
    kernels.all_finite(np.frombuffer(out.tobytes(), np.uint32))
