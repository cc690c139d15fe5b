"""Joins members by NCCL. Nobody has run this on hardware yet: it is as small as it can be, and all else is tested.

Torch ends a process whose NCCL group fails or hangs, by a thread that watches it and another one that watches this
thread. Here the mesh notices both, so all of that is switched off, and the communicator is aborted: in a thread of
its own, as aborting may hang itself.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import torch

from elasticdl_core.errors import InvalidInputError
from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.process_groups import MeshStore, dist

_FOR_EVER = timedelta(days=365)
_WATCHES_NOBODY = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # the watchdog neither aborts nor raises, which would end the process
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",  # nor does it raise what CUDA says
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # nobody ends the process because the watchdog hangs
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # nothing is asked of the store from threads of torch's
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_DESYNC_DEBUG": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
}
"""Torch reads them when a group is made."""


def find_cuda_device() -> torch.device:
    """The device whose tensors are summed.

    Raises:
        InvalidInputError: there is none, or torch has no NCCL.
    """
    if not hasattr(dist, "ProcessGroupNCCL"):
        raise InvalidInputError(
            f"PyTorch {torch.__version__} was built without NCCL",
            fix="install PyTorch's build for CUDA where the workers run, or use --collective auto",
        )
    if not torch.cuda.is_available():
        raise InvalidInputError(
            "NCCL joins CUDA devices, and PyTorch finds none",
            fix="look at `nvidia-smi` where the workers run, ask for a device with --worker_resource_request gpu=1, "
            "or use --collective auto",
        )
    return torch.device("cuda", torch.cuda.current_device())


def name_of(device: torch.device) -> str:
    """A name that no other device has, on any machine."""
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} {properties.uuid}"


def join_nccl(mesh: Mesh, store: MeshStore, device: torch.device) -> NcclGroup:
    """Makes torch's group; its members are not connected before its first sum.

    Args:
        mesh: of at least two members.
        store: over the mesh.
        device: this member's, and nobody else's.
    """
    os.environ.update(_WATCHES_NOBODY)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _FOR_EVER  # whoever waits has its own
    options.global_ranks_in_group = list(range(mesh.size))
    options.group_name = f"elasticdl {mesh.generation}"
    return NcclGroup(dist.ProcessGroupNCCL(store, mesh.rank, mesh.size, options))


class NcclGroup:
    """Torch's group, which ends by being aborted.

    Attributes:
        group: torch's; None once it was closed.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self._lock = threading.Lock()
        self._ending: threading.Thread | None = None

    def cut(self) -> None:
        """Ends what hangs in it: kernels on the device, and calls that wait for another member."""
        with self._lock:
            if self._ending is None:
                self._ending = threading.Thread(target=self.group.abort, name="collective aborts", daemon=True)
                self._ending.start()

    def close(self, kept: object) -> None:
        """Drops it; the memory of its sums is freed when nothing on the device writes to it any more."""
        self.cut()
        group, self.group = self.group, None
        threading.Thread(target=_drop, args=(self._ending, group, kept), name="collective ends", daemon=True).start()


def _drop(ending: threading.Thread, group: Any, kept: object) -> None:
    ending.join()
    del group, kept  # torch's destructor waits for its threads
