"""PyTorch, by the original project's names."""

from elasticdl.extras import require

require("elasticai_api.pytorch", "torch")
