"""For PyTorch models: embeddings without a bound on their ids, and ready minibatches from ``feed``.

Importing this package imports PyTorch (``pip install 'elasticdl[torch]'``).
"""

from __future__ import annotations

from elasticdl.extras import require

require("elasticdl.torch", "torch")

from elasticdl.torch.embedding import OpenEmbedding as Embedding  # noqa: E402 - what it needs is checked first
from elasticdl.torch.minibatches import Minibatches  # noqa: E402

__all__ = ["Embedding", "Minibatches"]
