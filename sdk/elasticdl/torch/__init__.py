"""For PyTorch: what model modules and training loops of one's own use beside PyTorch itself.

Modules: embeddings without a bound on their ids, ready minibatches from ``feed``, and ``metrics``. Loops:
``ElasticDataset``, ``distributed_optimizer``, ``run``, ``log`` and ``output_dir``. Importing this package imports
PyTorch (the extra ``torch``).
"""

from __future__ import annotations

from elasticdl.extras import require

require("elasticdl.torch", "torch")

from elasticdl.torch import metrics  # noqa: E402 - what it needs is checked first
from elasticdl.torch.dataset import ElasticDataset  # noqa: E402
from elasticdl.torch.distributed import distributed_optimizer  # noqa: E402
from elasticdl.torch.embedding import OpenEmbedding as Embedding  # noqa: E402
from elasticdl.torch.looping import log, output_dir, run  # noqa: E402
from elasticdl.torch.minibatches import Minibatches  # noqa: E402

__all__ = [
    "ElasticDataset",
    "Embedding",
    "Minibatches",
    "distributed_optimizer",
    "log",
    "metrics",
    "output_dir",
    "run",
]
